"""The neural probabilistic language model (Bengio et al., JMLR 2003), trained over MPI."""

__version__ = "0.1.0"
