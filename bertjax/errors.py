"""The one exception that stands for an expected error."""


class UserError(ValueError):
    """Bad input from outside: a config, a file, an argument, a missing device.

    Its message is one sentence that names the thing, its value and the remedy. The front doors
    print it on standard error and exit with code 2 (see `bertjax.cli.run`).
    """
