"""A Spack package; copy it to packages/py-nplm-mpi/package.py of a repository of yours."""

from spack.package import *  # noqa: F403


class PyNplmMpi(PythonPackage):  # noqa: F405
    """The neural probabilistic language model of Bengio et al. (2003), trained in parallel with MPI."""

    homepage = "https://pypi.org/project/nplm-mpi/"
    pypi = "nplm-mpi/nplm_mpi-0.2.0.tar.gz"

    license("Apache-2.0")

    version("0.2.0")  # noqa: F405

    variant("plot", default=False, description="learning curves and maps of words")  # noqa: F405

    depends_on("python@3.11:", type=("build", "run"))  # noqa: F405
    depends_on("py-setuptools@77:", type="build")  # noqa: F405
    for needed in (
        "py-numpy@2:",
        "py-scipy@1.13:",
        "py-numba@0.61:",
        "py-h5py@3.11: ~mpi",
        "py-mpi4py@4:",
        "py-pyyaml@6:",
        "py-rich@13:",
        "py-psutil@5.9:",
        "py-threadpoolctl@3.1:",
        "py-platformdirs@4:",
    ):
        depends_on(needed, type=("build", "run"))  # noqa: F405
    depends_on("py-matplotlib@3.8:", type="run", when="+plot")  # noqa: F405
    depends_on("py-scikit-learn@1.5:", type="run", when="+plot")  # noqa: F405
