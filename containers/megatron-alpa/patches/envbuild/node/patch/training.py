"""Edits without which a pinned training script does not start, or dies in its first step."""

import ast

from envbuild.node.patch.source_text import Change, Source, UnfitError, called, constant, dotted, nothing_left


def _find_split(source: "Source") -> "list[Change]":
    """In `split_tensor`: `x.shape[:-1]` where two dimensions are put in the place of the last three of five."""
    out = []
    for node in [node for function in source.functions("split_tensor") for node in ast.walk(function)]:
        shape = _shape_to(node)
        if shape is None or source.code(shape.upper) != "-1":
            continue
        if len(_cut(node)) != 5:
            raise UnfitError("the query is not cut out of five dimensions", source.span(node)[0])
        out.append(source.replaced(shape.upper, "2"))
    return out


def _shape_to(node: "ast.AST") -> "ast.Slice | None":
    """The slice of `y.reshape(x.shape[:end] + (-1, z))`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "reshape":
        return None
    total = node.args[0] if len(node.args) == 1 else None
    if not isinstance(total, ast.BinOp) or not isinstance(total.op, ast.Add) or not isinstance(total.right, ast.Tuple):
        return None
    first = total.left
    if not isinstance(first, ast.Subscript) or not dotted(first.value).endswith(".shape"):
        return None
    cut = first.slice
    plain = isinstance(cut, ast.Slice) and cut.lower is None and cut.step is None and cut.upper is not None
    return cut if plain and len(total.right.elts) == 2 else None  # type: ignore[return-value]


def _cut(call: "ast.AST") -> "list[ast.AST]":
    """The parts of the index of `x[a, b, …].reshape(…)`."""
    what = call.func.value  # type: ignore[attr-defined]
    index = what.slice if isinstance(what, ast.Subscript) else None
    index = getattr(index, "value", index)  # Python 3.8 wraps it
    return list(getattr(index, "elts", None) or getattr(index, "dims", None) or [])


_LAYERS = ("DotProductAttention", "LayerNorm", "LayerNormLinear", "Linear", "RMSNorm")
_ABSENT = '''\
def _envbuild_absent():
    """Stands for Transformer Engine where it is not installed: classes derive from its layers, none can be made."""
    import types

    class Absent(torch.nn.Module):
        def __init__(self, *args, **kwargs):
            why = " needs transformer_engine, which is not installed; --transformer-impl local does not use it"
            raise ModuleNotFoundError(type(self).__name__ + why, name="transformer_engine")

    return types.SimpleNamespace(pytorch=types.SimpleNamespace(**{name: Absent for name in %r}))


try:
    import transformer_engine as te
except ModuleNotFoundError as error:
    if error.name != "transformer_engine":
        raise
    te = _envbuild_absent()'''


def _find_engine(source: "Source") -> "list[Change]":
    """The plain `import transformer_engine as te` at the top; the stand-in comes behind all imports."""
    body = source.tree().body
    plain = [node for node in body if isinstance(node, ast.Import) and node.names[0].name == "transformer_engine"]
    if not plain:
        return []
    if len(plain) > 1 or len(plain[0].names) != 1 or plain[0].names[0].asname != "te":
        raise UnfitError("does not say `import transformer_engine as te` once", source.span(plain[0])[0])
    used = {dotted(node) for node in ast.walk(source.tree()) if dotted(node).startswith("te.pytorch.")}
    other = sorted(used - {"te.pytorch." + name for name in _LAYERS})
    if other:
        raise UnfitError("uses %s, which the stand-in does not have" % ", ".join(other))
    start, end = source.span(plain[0])
    after = source.span([node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))][-1])[1]
    helper = "\n\n\n" + _ABSENT % (_LAYERS,)
    return [Change(start, end + len(source.newline), ""), Change(after, after, helper, hit=False)]


_ABI = "-D_GLIBCXX_USE_CXX11_ABI="


def _find_abi(source: "Source") -> "list[Change]":
    """Elements of lists that fix the ABI of the C++ library."""
    return [
        source.without(node.elts, number, "the ABI")
        for node in source.every(ast.List)
        for number, one in enumerate(node.elts)
        if str(constant(one)).startswith(_ABI)
    ]


_VISION = "megatron.model.vision.knn_monitor"
_LATER = """\
def %s(*args, **named):
    \"\"\"Imported when it is called: vision needs torchvision, a language model does not.\"\"\"
    from %s import %s as work

    return work(*args, **named)"""


def _find_vision(source: "Source") -> "list[Change]":
    """The import of vision's monitor at the top of the file: it becomes a function that imports."""
    out = []
    for node in source.top(ast.ImportFrom):
        if node.module == _VISION:
            name = node.names[0].name
            if len(node.names) != 1 or node.names[0].asname:
                raise UnfitError("takes more than one name from %s" % _VISION, source.span(node)[0])
            out.append(source.replaced(node, _LATER % (name, _VISION, name)))
    return out


_WANDB = """\
try:
    import wandb
except ModuleNotFoundError as error:
    if error.name != "wandb":
        raise
    import types

    wandb = types.SimpleNamespace(run=None)  # as it is where no run was started"""


def _find_wandb(source: "Source") -> "list[Change]":
    """The plain `import wandb` at the top of a script that asks `wandb.run is not None` before each use."""
    plain = [node for node in source.top(ast.Import) if node.names[0].name == "wandb"]
    if plain and "wandb.run is not None" not in source.text:
        raise UnfitError("does not ask whether a run of wandb was started", source.span(plain[0])[0])
    for node in plain:
        if len(node.names) != 1 or node.names[0].asname:
            raise UnfitError("does not say `import wandb` alone", source.span(node)[0])
    return [source.replaced(node, _WANDB) for node in plain]


_AHEAD = "envbuild_kernels.helpers"
_COMPILE = ("compile_helper", "compile_helpers")
_COMPILE_AHEAD = """\
try:
    import envbuild_kernels.helpers
except ModuleNotFoundError:
    pass
else:
    return  # built ahead of time: nothing is compiled into this tree
"""
_HELPERS = '''\
def __getattr__(name):
    """`helpers` as it was built ahead of time; where it was not, what compile_helper made is imported as ever."""
    if name == "helpers":
        import importlib

        try:
            return importlib.import_module("envbuild_kernels.helpers")
        except ModuleNotFoundError:
            pass
    raise AttributeError("module %r has no attribute %r" % (__name__, name))
'''


def _find_helpers(source: "Source") -> "list[Change]":
    """The package that `helpers` is imported from, or the function that compiles it at every start."""
    if source.path.endswith("__init__.py"):
        if _AHEAD in source.text:
            return []
        if any(function.name == "__getattr__" for function in source.top(ast.FunctionDef)):
            raise UnfitError("has a __getattr__ of its own")
        end = len(source.text)
        return [Change(end, end, ("\n\n" if source.text.strip() else "") + _HELPERS)]
    out = []
    functions = [each for each in source.top(ast.FunctionDef) if each.name in _COMPILE]
    for function in [each for each in functions if _AHEAD not in source.code(each)]:
        if not any(constant(node) == "make" for node in ast.walk(function)):
            raise UnfitError("%s does not run make" % function.name, source.span(function)[0])
        start = source.span(function.body[1 if ast.get_docstring(function) else 0])[0]
        indent = source.indent(start)
        lines = [indent + line for line in _COMPILE_AHEAD.splitlines()]
        out.append(Change(start, start, "\n".join(lines).lstrip() + "\n" + indent))
    return out


_ADOPT = """
if args.deepspeed:
    deepspeed.init_distributed(dist_backend=args.distributed_backend)"""


def _find_deepspeed_start(source: "Source") -> "list[Change]":
    """Behind the if/else of `_initialize_distributed` that starts torch's process group: DeepSpeed takes it over."""
    out = []
    for function in source.top(ast.FunctionDef):
        if function.name != "_initialize_distributed" or "deepspeed.init_distributed" in called(function):
            continue
        starts = [node for node in function.body if isinstance(node, ast.If) and node.orelse and _starts_group(node)]
        if len(starts) != 1:
            raise UnfitError("does not start the process group in one if/else", source.span(function)[0])
        start, end = source.span(starts[0])
        indent = source.indent(start)
        out.append(Change(end, end, "\n".join(indent + line if line else line for line in _ADOPT.split("\n"))))
    return out


def _starts_group(node: "ast.AST") -> bool:
    return {"torch.distributed.is_initialized", "torch.distributed.init_process_group"} <= called(node)


_PRECOMPILED = """\
if not hasattr(fused_kernels, "load"):
    return  # this Megatron was built with its kernels
"""


def _find_kernel_load(source: "Source") -> "list[Change]":
    """In `load_megatron_fused_kernel`: behind its imports, nothing is loaded where Megatron has no `load`."""
    out = []
    for function in source.top(ast.FunctionDef):
        if function.name != "load_megatron_fused_kernel" or "fused_kernels.load" not in called(function):
            continue
        if 'hasattr(fused_kernels, "load")' in source.code(function):
            continue
        imports = [node for node in function.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        if not imports or not any(alias.name == "fused_kernels" for node in imports for alias in node.names):
            raise UnfitError("does not import fused_kernels", source.span(function)[0])
        start, end = source.span(imports[-1])
        indent = source.indent(start)
        out.append(Change(end, end, "\n\n" + "\n".join(indent + line for line in _PRECOMPILED.splitlines())))
    return out


def _find_defaults(source: "Source") -> "list[Change]":
    """Defaults that are instances of dataclasses of the same file, and where the default of a field is read."""
    classes = [node for node in source.top(ast.ClassDef) if _is_dataclass(node)]
    made = {node.name for node in classes}
    out = []
    for node in [each for one in classes for each in one.body if isinstance(each, ast.AnnAssign)]:
        call = node.value
        if isinstance(call, ast.Call) and dotted(call.func) in made:
            if call.args or call.keywords:
                raise UnfitError("makes a default with arguments", source.span(call)[0])
            out.append(source.replaced(call, "field(default_factory=%s)" % dotted(call.func)))
    if out and "field" not in _taken_from(source, "dataclasses"):
        raise UnfitError("does not import field from dataclasses", out[0].start)
    return out + [
        # A factory's field has no default: what an instance has is the same, and is also there with a factory.
        source.replaced(node, "getattr(%s(), %s)" % (dotted(fields.value), source.code(getattr(key, "value", key))))
        for node, fields, key in _defaults_read(source)
    ]


def _is_dataclass(node: "ast.ClassDef") -> bool:
    return any(dotted(each) == "dataclass" for each in node.decorator_list)


def _taken_from(source: "Source", module: str) -> "set[str]":
    found = [node for node in source.top(ast.ImportFrom) if node.module == module]
    return {alias.name for node in found for alias in node.names if not alias.asname}


def _defaults_read(source: "Source") -> "list[tuple[ast.Attribute, ast.Attribute, ast.AST]]":
    """In `hydra_init` every `X.__dataclass_fields__[key].default`: the whole, what is indexed, the key."""
    return [
        (node, node.value.value, node.value.slice)
        for function in source.functions("hydra_init")
        for node in source.every(ast.Attribute, function)
        if node.attr == "default" and isinstance(node.value, ast.Subscript)
        if isinstance(node.value.value, ast.Attribute) and node.value.value.attr == "__dataclass_fields__"
        if dotted(node.value.value.value)
    ]


def _find_types(source: "Source") -> "list[Change]":
    """In the tuples `…_TYPES` of the module: what newer DeepSpeeds make tensors with is no type of them."""
    out = []
    for node in source.tree().body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        if not all(isinstance(name, ast.Name) and name.id.endswith("_TYPES") for name in node.targets):
            continue
        out += [
            source.replaced(each, "torch.cuda.%s" % each.attr)
            for each in node.value.elts
            if isinstance(each, ast.Attribute)
            and isinstance(each.value, ast.Call)
            and dotted(each.value.func) == "get_accelerator"
        ]
    return out


EDITS = {
    "alcf-no-wandb": (_find_wandb, nothing_left(_find_wandb, "the unguarded import"), 1),
    "alcf-split-tensor": (_find_split, nothing_left(_find_split, "the reshape to six dimensions"), 1),
    "alcf-tensor-types": (_find_types, nothing_left(_find_types, "a type that is none"), 1),
    "megatron-data-helpers": (_find_helpers, nothing_left(_find_helpers, "the compiler's call"), 1),
    "megatron-deepspeed-start": (_find_deepspeed_start, nothing_left(_find_deepspeed_start, "a start without it"), 1),
    "megatron-vision-import": (_find_vision, nothing_left(_find_vision, "the import of vision's monitor"), 1),
    "megatronapp-abi": (_find_abi, nothing_left(_find_abi, "a fixed ABI"), 1),
    "metaseq-config-defaults": (_find_defaults, nothing_left(_find_defaults, "a default that is an instance"), 1),
    "metaseq-kernel-load": (_find_kernel_load, nothing_left(_find_kernel_load, "a load that is not asked for"), 1),
    "megatronapp-transformer-engine": (_find_engine, nothing_left(_find_engine, "the unguarded import"), 1),
}
