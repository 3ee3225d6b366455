"""An import hook that puts beartype on the functions of a package: calls with the wrong classes raise."""

import ast
import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any

CHECK = "_checked_by_beartype"


class Checks(ast.NodeTransformer):
    """Decorates functions and methods, innermost; not those inside of functions, which would be decorated anew at every
    call, nor those of protocols, which are never run. Annotations of names that only type checkers import are dropped.
    """

    def visit_Module(self, node: ast.Module) -> ast.AST:
        unseen = [part for part in node.body if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING"]
        imports = (part for block in unseen for part in ast.walk(block) if isinstance(part, ast.alias))
        self._unseen = {part.asname or part.name.split(".")[0] for part in imports}
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list.append(ast.copy_location(ast.Name(CHECK, ast.Load()), node))
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg) and self._is_unseen(argument.annotation):
                argument.annotation = None
        if self._is_unseen(node.returns):
            node.returns = None
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node if any(ast.unparse(base) == "Protocol" for base in node.bases) else self.generic_visit(node)

    def _is_unseen(self, annotation: ast.expr | None) -> bool:
        texts = (part.value for part in ast.walk(annotation or ast.Tuple()) if isinstance(part, ast.Constant))
        return any(self._unseen.intersection(re.findall(r"\w+", text)) for text in texts if isinstance(text, str))


class Loader(importlib.machinery.SourceFileLoader):
    """Imports a file as Python does, with its functions checked, and without a file of compiled code."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.fix_missing_locations(Checks().visit(ast.parse(self.get_data(path))))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        from beartype import beartype

        setattr(module, CHECK, beartype)
        super().exec_module(module)


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.split(".")[0] != self._package:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(name, spec.loader.path)
        return spec


def install(package: str) -> None:
    """From now on, modules of the package are imported with their functions checked."""
    sys.meta_path.insert(0, Finder(package))
