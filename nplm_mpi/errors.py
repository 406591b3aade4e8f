"""The one exception that means "the user can mend this": one clear line, exit code 2."""


class UserError(Exception):
    """Bad input or bad arguments: a single line that says what, where and what to do.

    Commands print it without a traceback and exit with code 2.

    Attributes
    ----------
    collective : bool
        True if every rank raises the same error at the same point (for example
        after rank 0 shared its failure), so that each may leave quietly; False
        if only this rank knows, so that it must end the others.
    """

    collective = False
