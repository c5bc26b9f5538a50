"""The public surface: few names, each documented, no module under the name of a function."""

import inspect
import pkgutil

import sbp

NAMES = [
    "B", "BoxingError", "Cluster", "MeshRanking", "NdSbp", "P", "Plan", "PlanError", "S",
    "SbpError", "SignatureError", "Step", "audit", "box", "boxing_path", "from_partition_spec",
    "named_sharding", "parallelize", "partition_spec", "pin", "show", "signature", "signatures",
    "suggest_mesh", "verify_signature", "words",
]  # fmt: skip


def test_public_names_are_these_and_at_most_thirty():
    assert sorted(sbp.__all__) == sorted(NAMES)
    assert len(sbp.__all__) <= 30
    modules = {module.name for module in pkgutil.iter_modules(sbp.__path__)}
    public = {name for name in vars(sbp) if not name.startswith("_")}
    assert public - modules == set(NAMES)
    assert not modules & set(NAMES)


def test_every_public_name_is_documented():
    for name in NAMES:
        value = getattr(sbp, name)
        assert inspect.getdoc(value if callable(value) else type(value)), name
        if inspect.isclass(value):
            members = inspect.getmembers(value, inspect.isfunction)
            undocumented = [n for n, f in members if not n.startswith("_") and not f.__doc__]
            assert not undocumented, (name, undocumented)


def test_every_argument_of_a_public_function_is_described():
    for name in NAMES:
        function = getattr(sbp, name)
        if not inspect.isfunction(function) or name == "show":
            continue
        text = inspect.getdoc(function) or ""
        for argument in inspect.signature(function).parameters:
            assert f"{argument}:" in text or len(text.splitlines()) == 1, (name, argument)


def test_arguments_past_the_second_are_by_keyword():
    # Those that read as a sentence of positions are not.
    free = {"boxing_path", "box", "from_partition_spec", "named_sharding", "verify_signature"}
    for name in set(NAMES) - free:
        function = getattr(sbp, name)
        if inspect.isfunction(function):
            parameters = list(inspect.signature(function).parameters.values())
            kinds = [p.kind for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
            assert len(kinds) <= 2, name
