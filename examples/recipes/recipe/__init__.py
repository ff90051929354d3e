"""What the recipes of this folder share: one concept a file.

`settings` describes a way to train, `models` builds what is trained, `training` trains it,
`measuring` counts the bytes of a step, `replicas` those of each of several processes, `planning` asks `memopt plan`, `applying` has it change the
recipe's own configuration file, `comparing` sets planned beside measured, and `running` is the
command line.
"""

from .running import Recipe, main

__all__ = ["Recipe", "main"]
