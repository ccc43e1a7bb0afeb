"""What defines a name, and what imports, as tree-sitter queries for each language.

`leaf` is a definition that is a whole, `container` one with members, and `group` what others stand in
that have nothing to do with each other. They have a `name`, or none. `owner` is the type to which a
definition belongs that stands outside of it.
"""

from __future__ import annotations

from functools import lru_cache

from tree_sitter import Query

from completion_ls.syntax.languages import grammar

_PYTHON = """
(function_definition name: (_) @name) @leaf
(class_definition name: (_) @name) @container
(expression_statement (assignment left: (identifier) @name)) @leaf
(type_alias_statement left: (type) @name) @leaf
"""
_JAVASCRIPT = """
(function_declaration name: (_) @name) @leaf
(generator_function_declaration name: (_) @name) @leaf
(class_declaration name: (_) @name) @container
(method_definition name: (_) @name) @leaf
(lexical_declaration (variable_declarator name: (identifier) @name)) @leaf
(variable_declaration (variable_declarator name: (identifier) @name)) @leaf
"""
_TYPESCRIPT = (
    _JAVASCRIPT
    + """
(abstract_class_declaration name: (_) @name) @container
(internal_module name: (_) @name) @group
(public_field_definition name: (_) @name) @leaf
(abstract_method_signature name: (_) @name) @leaf
(interface_declaration name: (_) @name) @leaf
(type_alias_declaration name: (_) @name) @leaf
(enum_declaration name: (_) @name) @leaf
(function_signature name: (_) @name) @leaf
"""
)
_RUST = """
(function_item name: (_) @name) @leaf
(function_signature_item name: (_) @name) @leaf
(struct_item name: (_) @name) @leaf
(enum_item name: (_) @name) @leaf
(union_item name: (_) @name) @leaf
(type_item name: (_) @name) @leaf
(const_item name: (_) @name) @leaf
(static_item name: (_) @name) @leaf
(macro_definition name: (_) @name) @leaf
(trait_item name: (_) @name) @container
(mod_item name: (_) @name body: (_)) @container
(impl_item type: (_) @owner) @container
"""
_GO = """
(function_declaration name: (_) @name) @leaf
(method_declaration receiver: (parameter_list (parameter_declaration type: (_) @owner)) name: (_) @name) @leaf
(type_declaration (type_spec name: (_) @name)) @leaf
(type_declaration (type_alias name: (_) @name)) @leaf
(const_declaration (const_spec name: (_) @name)) @leaf
(var_declaration (var_spec name: (_) @name)) @leaf
(var_declaration (var_spec_list (var_spec name: (_) @name))) @leaf
"""
_C_COMMON = """
(function_definition declarator: (function_declarator declarator: (_) @name)) @leaf
(function_definition
  declarator: (pointer_declarator declarator: (function_declarator declarator: (_) @name))) @leaf
(declaration declarator: (function_declarator declarator: (_) @name)) @leaf
(declaration
  declarator: (pointer_declarator declarator: (function_declarator declarator: (_) @name))) @leaf
(declaration declarator: (init_declarator declarator: (identifier) @name)) @leaf
(declaration declarator: (identifier) @name) @leaf
(enum_specifier name: (_) @name body: (_)) @leaf
(union_specifier name: (_) @name body: (_)) @leaf
(type_definition declarator: (type_identifier) @name) @leaf
(type_definition type: (struct_specifier name: (_) @name)) @leaf
(preproc_def name: (_) @name) @leaf
(preproc_function_def name: (_) @name) @leaf
(preproc_ifdef) @group
(preproc_if) @group
"""
_C = (
    _C_COMMON
    + """
(struct_specifier name: (_) @name body: (_)) @leaf
"""
)
_CPP = (
    _C_COMMON
    + """
(struct_specifier name: (_) @name body: (_)) @container
(class_specifier name: (_) @name body: (_)) @container
(namespace_definition) @group
(linkage_specification) @group
(function_definition
  declarator: (reference_declarator (function_declarator declarator: (_) @name))) @leaf
(declaration declarator: (reference_declarator (function_declarator declarator: (_) @name))) @leaf
(field_declaration declarator: (function_declarator declarator: (_) @name)) @leaf
(alias_declaration name: (_) @name) @leaf
(concept_definition name: (_) @name) @leaf
"""
)
_JAVA = """
(class_declaration name: (_) @name) @container
(interface_declaration name: (_) @name) @container
(record_declaration name: (_) @name) @container
(enum_declaration name: (_) @name) @container
(annotation_type_declaration name: (_) @name) @container
(method_declaration name: (_) @name) @leaf
(constructor_declaration name: (_) @name) @leaf
(compact_constructor_declaration name: (_) @name) @leaf
(field_declaration declarator: (variable_declarator name: (_) @name)) @leaf
"""
_DEFINITIONS = {
    "c": _C,
    "cpp": _CPP,
    "go": _GO,
    "java": _JAVA,
    "javascript": _JAVASCRIPT + "(field_definition property: (_) @name) @leaf\n",
    "javascriptreact": _JAVASCRIPT + "(field_definition property: (_) @name) @leaf\n",
    "python": _PYTHON,
    "rust": _RUST,
    "typescript": _TYPESCRIPT,
    "typescriptreact": _TYPESCRIPT,
}
_JAVASCRIPT_IMPORTS = """
(import_statement source: (string) @module) @import
(export_statement source: (string) @module) @import
((call_expression function: (_) @function arguments: (arguments . (string) @module)) @import
  (#any-of? @function "require" "import"))
"""
_IMPORTS = {
    "c": "(preproc_include path: (string_literal) @module) @import",
    "cpp": "(preproc_include path: (string_literal) @module) @import",
    "go": "(import_spec path: (_) @module) @import",
    "java": "(import_declaration (_) @module) @import",
    "javascript": _JAVASCRIPT_IMPORTS,
    "javascriptreact": _JAVASCRIPT_IMPORTS,
    "python": """
(import_statement name: (dotted_name) @module) @import
(import_statement name: (aliased_import name: (_) @module)) @import
(import_from_statement module_name: (_) @module) @import
""",
    "rust": """
(use_declaration argument: (_) @module) @import
(mod_item name: (_) @module !body) @import
""",
    "typescript": _JAVASCRIPT_IMPORTS,
    "typescriptreact": _JAVASCRIPT_IMPORTS,
}


@lru_cache
def definitions(language: str) -> Query:
    """Of a language that has a grammar."""
    return Query(grammar(language), _DEFINITIONS[language])


@lru_cache
def imports(language: str) -> Query:
    """Of a language that has a grammar: `module` is what is imported, `import` the statement."""
    return Query(grammar(language), _IMPORTS[language])
