"""The schemas of the command's --json, and values checked against them where jsonschema is installed."""

from __future__ import annotations

import json
import os

import memopt.cli


def load(verb):
    """The schema of a verb's --json, as it lies in the package."""
    folder = os.path.join(os.path.dirname(memopt.cli.__file__), "schemas")
    with open(os.path.join(folder, verb + ".json"), encoding="utf-8") as file:
        return json.load(file)


def validate(value, schema):
    """AssertionError names the place and what is wrong there."""
    try:
        from jsonschema import Draft202012Validator, ValidationError
    except ImportError:
        return
    Draft202012Validator.check_schema(schema)
    try:
        Draft202012Validator(schema).validate(value)
    except ValidationError as error:
        raise AssertionError("%s: %s" % (error.json_path, error.message)) from None
