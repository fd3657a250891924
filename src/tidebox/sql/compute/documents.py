"""Functions of JSON documents."""

import re
from collections.abc import Iterator
from typing import Any, Final

from tidebox.sql.codec.datum import Json, JsonDuration, JsonOpaque, JsonTime, JsonTimeKind, JsonUint
from tidebox.sql.codec.documents import document_text, parse_document
from tidebox.sql.compute.casts import document_of, to_json
from tidebox.sql.compute.compare import json_key
from tidebox.sql.compute.kinds import BOOL, INT, JSON, TEXT, Compute, Computed, Kind
from tidebox.sql.compute.registry import MANY, function, is_constant, strict, texts
from tidebox.sql.compute.scope import Context
from tidebox.sql.syntax.tree import Call
from tidebox.sql.wire.errors import Errno, sql_error

_ALL: Final = object()
_LEG: Final = re.compile(r'\s*(?:\.\s*(?:"((?:[^"\\]|\\.)*)"|([\w$]+)|(\*))|\[\s*(?:(\d+)|(\*))\s*\])')


def path_of(text: str) -> list[Any]:
    """The legs of a path such as ``$.a[0].*``."""
    at = len(text) - len(text.lstrip())
    if not text[at:].startswith("$"):
        raise sql_error(Errno.INVALID_JSON_PATH, 1)
    at += 1
    legs: list[Any] = []
    while text[at:].strip():
        if text[at:].lstrip().startswith("**"):
            raise sql_error(Errno.NOT_SUPPORTED_YET, "** in a JSON path")
        found = _LEG.match(text, at)
        if found is None:
            raise sql_error(Errno.INVALID_JSON_PATH, at + 1)
        quoted, member, all_members, element, _ = found.groups()
        if quoted is not None:
            legs.append(str(parse_document(f'"{quoted}"').root))
        elif member is not None:
            legs.append(member)
        elif element is not None:
            legs.append(int(element))
        else:
            legs.append((_ALL, all_members is not None))
        at = found.end()
    return legs


def _walk(root: Any, legs: list[Any]) -> Iterator[Any]:
    if not legs:
        yield root
        return
    leg, rest = legs[0], legs[1:]
    if isinstance(leg, str):
        if isinstance(root, dict) and leg in root:
            yield from _walk(root[leg], rest)
    elif isinstance(leg, int):
        if isinstance(root, list):
            if leg < len(root):
                yield from _walk(root[leg], rest)
        elif leg == 0:  # what is no array is its own only element
            yield from _walk(root, rest)
    elif leg[1]:
        if isinstance(root, dict):
            for key in sorted(root, key=lambda k: k.encode()):
                yield from _walk(root[key], rest)
    elif isinstance(root, list):
        for item in root:
            yield from _walk(item, rest)


def _document(argument: Computed, name: str) -> Compute:
    """An argument that is a document, or the text of one."""
    kind, compute = argument.type, argument.compute

    def read(row: Any) -> Json | None:
        value = compute(row)
        if value is None:
            return None
        if kind.kind in (Kind.BYTES, Kind.BITS):
            raise sql_error(Errno.INVALID_JSON_CHARSET, "binary")
        return to_json(value, kind, is_parsed=True)

    return read


def _value(argument: Computed) -> Compute:
    """An argument that becomes part of a document; NULL becomes ``null``."""
    kind, compute = argument.type, argument.compute

    def read(row: Any) -> Any:
        value = compute(row)
        return None if value is None else to_json(value, kind, is_parsed=False).root

    return read


@function("JSON_OBJECT", least=0, most=MANY)
def _object(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if len(arguments) % 2:
        raise sql_error(Errno.WRONG_PARAMCOUNT, "json_object")
    keys, values = texts(arguments[::2]), [_value(argument) for argument in arguments[1::2]]

    def compute(row: Any) -> Json:
        found = {}
        for key, value in zip(keys, values, strict=True):
            name = key(row)
            if name is None:
                raise sql_error(Errno.INVALID_JSON_TEXT, "JSON documents may not contain NULL member names.")
            found[name] = value(row)
        return Json(found)

    return Computed(JSON, compute, is_constant(arguments))


@function("JSON_ARRAY", least=0, most=MANY)
def _array(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    values = [_value(argument) for argument in arguments]
    return Computed(JSON, lambda row: Json([value(row) for value in values]), is_constant(arguments))


@function("JSON_EXTRACT", least=2, most=MANY)
def _extract(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    is_single = len(arguments) == 2

    def apply(document: Json, *paths: str) -> Json | None:
        legs = [path_of(path) for path in paths]
        found = [value for each in legs for value in _walk(document.root, each)]
        if not found:
            return None
        if is_single and not any(isinstance(leg, tuple) for leg in legs[0]):
            return Json(found[0])
        return Json(found)

    return strict(JSON, [_document(arguments[0], tree.name), *texts(arguments[1:])], apply, is_constant(arguments))


@function("JSON_UNQUOTE", least=1)
def _unquote(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if arguments[0].type.kind is Kind.JSON:

        def of_document(document: Json) -> str:
            root = document.root
            if isinstance(root, str):
                return root
            text = document_text(document)
            return text.strip('"') if isinstance(root, JsonTime | JsonDuration | JsonOpaque) else text

        return strict(TEXT, [arguments[0].compute], of_document, is_constant(arguments))

    def of_text(text: str) -> str:
        if len(text) >= 2 and text[0] == text[-1] == '"':
            return str(document_of(text).root)
        return text

    return strict(TEXT, texts(arguments), of_text, is_constant(arguments))


@function("JSON_QUOTE", least=1)
def _quote(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(TEXT, texts(arguments), lambda text: document_text(Json(text)), is_constant(arguments))


@function("JSON_VALID", least=1)
def _valid(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if arguments[0].type.kind is Kind.JSON:
        return strict(BOOL, [arguments[0].compute], lambda document: 1, is_constant(arguments))
    if not arguments[0].type.kind.is_string:
        return strict(BOOL, [arguments[0].compute], lambda value: 0, is_constant(arguments))

    def apply(text: str) -> int:
        try:
            parse_document(text)
        except (ValueError, RecursionError):
            return 0
        return 1

    return strict(BOOL, texts(arguments), apply, is_constant(arguments))


@function("JSON_TYPE", least=1)
def _type(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(
        TEXT, [_document(arguments[0], tree.name)], lambda document: _type_name(document.root), is_constant(arguments)
    )


def _type_name(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, JsonUint):
        return "UNSIGNED INTEGER"
    if isinstance(value, int):
        return "INTEGER" if value < 1 << 63 else "UNSIGNED INTEGER"
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, str):
        return "STRING"
    if isinstance(value, dict):
        return "OBJECT"
    if isinstance(value, JsonTime):
        return "DATE" if value.kind is JsonTimeKind.DATE else "DATETIME"
    if isinstance(value, JsonDuration):
        return "TIME"
    if isinstance(value, JsonOpaque):
        return "BIT" if value.type_code == 16 else "BLOB"
    return "ARRAY"


@function("JSON_LENGTH", least=1, most=2)
def _length(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(document: Json, path: str = "$") -> int | None:
        found = next(_walk(document.root, path_of(path)), _ALL)
        if found is _ALL:
            return None
        return len(found) if isinstance(found, dict | list) else 1

    return strict(INT, [_document(arguments[0], tree.name), *texts(arguments[1:])], apply, is_constant(arguments))


@function("JSON_DEPTH", least=1)
def _depth(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def depth(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + max(map(depth, value.values()), default=0)
        if isinstance(value, list):
            return 1 + max(map(depth, value), default=0)
        return 1

    return strict(INT, [_document(arguments[0], tree.name)], lambda doc: depth(doc.root), is_constant(arguments))


@function("JSON_KEYS", least=1, most=2)
def _keys(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(document: Json, path: str = "$") -> Json | None:
        found = next(_walk(document.root, path_of(path)), None)
        if not isinstance(found, dict):
            return None
        names: list[str] = sorted(found, key=lambda name: name.encode())
        return Json(names)

    return strict(JSON, [_document(arguments[0], tree.name), *texts(arguments[1:])], apply, is_constant(arguments))


@function("JSON_CONTAINS", least=2, most=3)
def _contains(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(target: Json, candidate: Json, path: str = "$") -> int | None:
        found = next(_walk(target.root, path_of(path)), _ALL)
        return None if found is _ALL else int(_holds(found, candidate.root))

    computes = [_document(arguments[0], tree.name), _document(arguments[1], tree.name), *texts(arguments[2:])]
    return strict(BOOL, computes, apply, is_constant(arguments))


def _holds(target: Any, candidate: Any) -> bool:
    if isinstance(target, dict):
        return isinstance(candidate, dict) and all(
            key in target and _holds(target[key], value) for key, value in candidate.items()
        )
    if isinstance(target, list):
        if isinstance(candidate, list):
            return all(any(_holds(item, each) for item in target) for each in candidate)
        return any(_holds(item, candidate) for item in target)
    return bool(json_key(Json(target)) == json_key(Json(candidate)))


# Changes


@function("JSON_SET", "JSON_INSERT", "JSON_REPLACE", least=3, most=MANY)
def _set(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if len(arguments) % 2 == 0:
        raise sql_error(Errno.WRONG_PARAMCOUNT, tree.name.lower())
    document = _document(arguments[0], tree.name)
    paths, values = texts(arguments[1::2]), [_value(argument) for argument in arguments[2::2]]
    inserts, replaces = tree.name != "JSON_REPLACE", tree.name != "JSON_INSERT"

    def compute(row: Any) -> Json | None:
        found = document(row)
        if found is None:
            return None
        root = found.root
        for path, value in zip(paths, values, strict=True):
            text = path(row)
            if text is None:
                return None
            root = _changed(root, path_of(text), value(row), inserts, replaces)
        return Json(root)

    return Computed(JSON, compute, is_constant(arguments))


def _changed(root: Any, legs: list[Any], value: Any, inserts: bool, replaces: bool) -> Any:
    """A copy of the document with one place set."""
    if not legs:
        return value if replaces else root
    leg, rest = legs[0], legs[1:]
    if isinstance(leg, tuple):
        raise sql_error(Errno.INVALID_JSON_PATH, 1)
    if isinstance(leg, str):
        if not isinstance(root, dict):
            return root
        if leg in root:
            return {**root, leg: _changed(root[leg], rest, value, inserts, replaces)}
        return {**root, leg: value} if not rest and inserts else root
    if not isinstance(root, list):
        if leg == 0:
            return _changed(root, rest, value, inserts, replaces)
        return [root, value] if not rest and inserts else root
    if leg < len(root):
        return [*root[:leg], _changed(root[leg], rest, value, inserts, replaces), *root[leg + 1 :]]
    return [*root, value] if not rest and inserts else root


@function("JSON_REMOVE", least=2, most=MANY)
def _remove(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(document: Json, *paths: str) -> Json:
        root: Any = document.root
        for path in paths:
            root = _removed(root, path_of(path))
        return Json(root)

    return strict(JSON, [_document(arguments[0], tree.name), *texts(arguments[1:])], apply, is_constant(arguments))


def _removed(root: Any, legs: list[Any]) -> Any:
    if not legs:
        raise sql_error(Errno.INVALID_JSON_PATH, 1)
    leg, rest = legs[0], legs[1:]
    if isinstance(root, dict) and isinstance(leg, str) and leg in root:
        if rest:
            return {**root, leg: _removed(root[leg], rest)}
        return {key: value for key, value in root.items() if key != leg}
    if isinstance(root, list) and isinstance(leg, int) and leg < len(root):
        if rest:
            return [*root[:leg], _removed(root[leg], rest), *root[leg + 1 :]]
        return root[:leg] + root[leg + 1 :]
    return root


@function("JSON_MERGE_PATCH", least=2, most=MANY)
def _merge_patch(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def merge(target: Any, patch: Any) -> Any:
        if not isinstance(patch, dict):
            return patch
        found = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = merge(found.get(key), value)
        return found

    def apply(first: Json, *others: Json) -> Json:
        root = first.root
        for other in others:
            root = merge(root, other.root)
        return Json(root)

    return strict(JSON, [_document(each, tree.name) for each in arguments], apply, is_constant(arguments))
