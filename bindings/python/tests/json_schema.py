"""Checks a value against a JSON schema, as far as the command's schemas go: a keyword that this
does not know is an error, so nothing is silently left unchecked. Where the package jsonschema is
installed, it must agree."""

from __future__ import annotations

import json
import os

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}
KNOWN = {"$schema", "title", "description", "$defs", "$ref", "type", "required", "properties"}
KNOWN |= {"additionalProperties", "items", "enum", "minimum"}


def load(verb):
    """The schema of a verb's --json, as it lies in the package."""
    import memopt.cli

    folder = os.path.join(os.path.dirname(memopt.cli.__file__), "schemas")
    with open(os.path.join(folder, verb + ".json"), encoding="utf-8") as file:
        return json.load(file)


def validate(value, schema):
    """AssertionError names the place and what is wrong there."""
    _check(value, schema, schema, "$")
    try:
        import jsonschema
    except ImportError:
        return
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(value)


def _is(value, name):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def _check(value, schema, root, place):
    assert set(schema) <= KNOWN, "%s: unknown keywords %s" % (place, set(schema) - KNOWN)
    if "$ref" in schema:
        _check(value, root["$defs"][schema["$ref"].split("/")[-1]], root, place)
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(_is(value, name) for name in names), "%s: %r is no %s" % (place, value, names)
    if "enum" in schema:
        assert value in schema["enum"], "%s: %r is none of %s" % (place, value, schema["enum"])
    if "minimum" in schema and value is not None:
        assert value >= schema["minimum"], "%s: %r is too small" % (place, value)
    if isinstance(value, dict):
        missing = set(schema.get("required", ())) - set(value)
        assert not missing, "%s: without %s" % (place, missing)
        known = schema.get("properties", {})
        if schema.get("additionalProperties") is False:
            assert set(value) <= set(known), "%s: unknown %s" % (place, set(value) - set(known))
        for key in set(value) & set(known):
            _check(value[key], known[key], root, "%s.%s" % (place, key))
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            _check(item, schema["items"], root, "%s[%d]" % (place, number))
