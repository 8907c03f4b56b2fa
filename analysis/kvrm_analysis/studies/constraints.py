"""Constraints between the keys of a cell: expressions that a cell has to satisfy to be in the study.

    policy != "static" or trace.speedup <= 2
    policy.schedule.slots * policy.pager.block_size_tokens <= 16 * pool_blocks

Written like Python: ``and``, ``or``, ``not``, comparisons, ``in [...]``, ``+ - * / // %``, numbers and words. A name is
a key; one that the cell does not set has the value of its preset, or its default. Nothing else is evaluated.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvrm_analysis.studies.settings import checked_key
from kvrm_sim.errors import ConfigError

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, values: value in values,
    ast.NotIn: lambda value, values: value not in values,
}


@dataclass(frozen=True)
class Constraint:
    """One expression, parsed, with every key in it known."""

    text: str
    tree: ast.expr

    @classmethod
    def parse(cls, text: object) -> Constraint:
        """Parse an expression. Raises ConfigError for what is none, or names an unknown key."""
        if not isinstance(text, str):
            raise ConfigError(f"constraints: {text!r}: should be an expression in quotes", "constraints", text)
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise ConfigError(f"constraints: {text!r}: {error.msg}", "constraints", text) from None
        constraint = cls(text, tree)
        constraint.keys()
        return constraint

    def keys(self) -> list[str]:
        """The keys in it, as they are called in settings."""
        found: list[str] = []
        self._walk(self.tree, found)
        return found

    def holds(self, value_of: Callable[[str], Any]) -> bool:
        """Whether it holds. Raises ConfigError where it cannot be told, as for a comparison with an unset key."""
        try:
            return bool(_value(self.tree, value_of))
        except (TypeError, ZeroDivisionError) as error:
            values = ", ".join(f"{key} = {value_of(key)!r}" for key in dict.fromkeys(self.keys()))
            raise ConfigError(f"constraints: {self.text!r} with {values}: {error}", "constraints", self.text) from None

    def _walk(self, node: ast.expr, found: list[str]) -> None:
        if isinstance(node, (ast.Name, ast.Attribute)):
            try:
                found.append(checked_key(_dotted(node, self.text)).name)
            except ConfigError as error:
                raise ConfigError(f"constraints: {self.text!r}: {error.message}", error.key) from None
            return
        allowed = (ast.Constant, ast.List, ast.Tuple, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare)
        if not isinstance(node, allowed) or (isinstance(node, ast.BinOp) and type(node.op) not in _BINARY):
            raise _not_understood(self.text, node)
        if isinstance(node, ast.Compare) and any(type(op) not in _COMPARED for op in node.ops):
            raise _not_understood(self.text, node)
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, (ast.Not, ast.USub)):
            raise _not_understood(self.text, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._walk(child, found)


def _not_understood(text: str, node: ast.expr) -> ConfigError:
    part = ast.unparse(node)
    return ConfigError(
        f"constraints: {text!r}: {part!r} is not understood: use keys, numbers, words, and, or, not, comparisons, in "
        "and + - * / // %",
        "constraints",
        text,
    )


def _dotted(node: ast.expr, text: str) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, text)}.{node.attr}"
    raise _not_understood(text, node)


def _value(node: ast.expr, value_of: Callable[[str], Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() | ast.Attribute():
            return value_of(checked_key(_dotted(node, "")).name)
        case ast.List() | ast.Tuple():
            return [_value(entry, value_of) for entry in node.elts]
        case ast.BoolOp(op=ast.And()):
            return all(_value(entry, value_of) for entry in node.values)
        case ast.BoolOp():
            return any(_value(entry, value_of) for entry in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, value_of)
        case ast.UnaryOp():
            return -_value(node.operand, value_of)
        case ast.BinOp():
            return _BINARY[type(node.op)](_value(node.left, value_of), _value(node.right, value_of))
        case ast.Compare():
            sides = [_value(side, value_of) for side in (node.left, *node.comparators)]
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return all(_COMPARED[type(op)](left, right) for op, left, right in pairs)
    raise AssertionError(f"{ast.dump(node)} passed the check")
