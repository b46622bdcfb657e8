"""The rules of the architecture as failing tests. Here: a kind of contract that import-linter does not bring."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, cast

from importlinter import Contract, ContractCheck, fields, output
from importlinter.domain.helpers import module_expressions_to_modules

if TYPE_CHECKING:
    from grimp import ImportGraph
    from importlinter.domain.imports import ModuleExpression


class ExternalAllowlistContract(Contract):
    """Modules may import their own package, the standard library, and `allowed_packages`. Nothing else."""

    type_name: Final = "external_allowlist"

    source_modules = fields.ListField(subfield=fields.ModuleExpressionField())
    allowed_packages = fields.SetField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find each direct import of an external package that is not allowed."""
        allowed = set(cast("set[str] | None", self.allowed_packages) or ()) | sys.stdlib_module_names
        refused = [
            (
                importer,
                imported,
                [detail["line_number"] for detail in graph.get_import_details(importer=importer, imported=imported)],
            )
            for importer in self._importers(graph)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            # External packages are single, squashed nodes of the graph.
            if graph.is_module_squashed(imported) and imported.split(".")[0] not in allowed
        ]
        return ContractCheck(kept=not refused, metadata={"refused": refused})

    def _importers(self, graph: ImportGraph) -> list[str]:
        names: set[str] = set()
        for module in module_expressions_to_modules(graph, cast("list[ModuleExpression]", self.source_modules)):
            names |= {module.name, *graph.find_descendants(module.name)}
        return sorted(names)

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Say which line imports what."""
        for importer, imported, lines in check.metadata["refused"]:
            output.print_error(f"{importer} imports {imported} (l.{lines}), which is not allowed here.", bold=False)
            output.new_line()
