"""A small module for each verb of the command, of its name: HELP is its line in the help. The verb itself is
in the module ``memopt.cli.<verb>``, which is imported only when it is asked for. A package that is
installed into this folder adds its verbs so. ``about_backend(name)``, where a module has it, is what
``memopt info`` tells of monitoring."""
