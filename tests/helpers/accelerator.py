"""A pretend accelerator: tensors that compute on the CPU and obey the rules of a GPU, and what the host waits for.

`with Accelerator() as gpu:` makes the device `meta`, on which torch itself computes nothing, hold real values. What
CUDA would refuse raises `Misplaced`: tensors of two devices in one operation (but for single numbers of the CPU in
pointwise arithmetic), a CPU generator for a draw on the device, an operation without a CUDA kernel (if torch has any).
What makes the host wait for the device is counted: reading a value, copies to the CPU or from memory that is not
pinned, and operations whose kernels read back their output's shape or their input's validity.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch  # no public name lets a wrapper alone change its own shape
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from typing_extensions import Self

DEVICE = torch.device("meta")
READ = ("_local_scalar_dense", "is_nonzero", "equal")  # the result is a value on the host
READING = (
    *READ,
    *("nonzero", "masked_select", "bincount", "multinomial", "repeat_interleave"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
    *("_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_lstsq"),
)
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
POINTWISE = ("floor_divide",)  # like those that torch tags so, they take numbers from the CPU
COPYING = ("_to_copy", "copy_", "_foreach_copy_")


class Misplaced(RuntimeError):
    """What CUDA would refuse."""


class OnDevice(Tensor):
    """A tensor that says it is on the device; `value` is on the CPU, laid out alike."""

    value: Tensor

    @staticmethod
    def __new__(cls, value: Tensor) -> Self:
        """Around `value`, which may be a view of another one's."""
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls,
            value.size(),
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=DEVICE,
        )
        made.value = value
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.value})"

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As any tensor's; the address is the value's."""
        if function is Tensor.data_ptr:
            return args[0].value.data_ptr()
        if function is Tensor.tolist:
            return args[0].cpu().tolist()
        if function is Tensor.numpy:
            raise Misplaced("numpy() of a tensor of the device")
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Nothing computes on the device where there is no accelerator."""
        raise Misplaced(f"{func} on a tensor of the device, outside its accelerator")


class Accelerator(TorchDispatchMode):
    """While it is entered, `device="meta"` is the accelerator. Waits and operations are counted by scope."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: dict[str, Counter[str]] = {}
        self.operations: Counter[str] = Counter()  # without views, which launch nothing
        self.views: Counter[str] = Counter()
        self._scope = ""
        self._constructors = _Constructors()

    def __enter__(self) -> Self:
        self._constructors.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._constructors.__exit__(*error)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Count what the block does under `name`."""
        before, self._scope = self._scope, name
        try:
            yield
        finally:
            self._scope = before

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation: by CUDA's rules if a tensor of the device is in it, as it is otherwise."""
        kwargs = dict(kwargs or {})
        to = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if to != DEVICE and not any(isinstance(each, OnDevice) for each in tensors):
            return function(*args, **kwargs)
        name = function._schema.name.removeprefix("aten::")
        _check(function, name, args, tensors, kwargs)
        arguments = function._schema.arguments
        views = any(a.alias_info is not None and not a.alias_info.is_write for a in arguments)
        (self.views if views else self.operations)[self._scope] += 1
        if wait := _wait(name, args, tensors, kwargs):
            self.waits.setdefault(self._scope, Counter())[wait] += 1
        if to is not None:
            kwargs["device"] = torch.device("cpu")
        found = function(*_values(args), **_values(kwargs))
        written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
        if torch.Tag.inplace_view in function.tags:  # a tensor that changes its shape, as its value did
            with no_dispatch():
                function(*args, **kwargs)
        if any(written) and function._schema.returns:  # the very tensors that were written to
            given = [*args, *[kwargs.get(a.name) for a in arguments[len(args) :]]]
            outs = [each for each, changed in zip(given, written, strict=True) if changed]
            return outs[0] if len(outs) == 1 else tuple(outs)
        stays = name in READ or (to is not None and to != DEVICE)
        return found if stays else tree_map_only(Tensor, OnDevice, found)


class _Constructors(TorchFunctionMode):
    """What torch would make on `meta` without asking anyone: tensors of Python numbers; and pinned memory."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is Tensor.pin_memory:
            copy = args[0].clone()
            copy.pinned = True
            return copy
        makes = function in (torch.tensor, torch.as_tensor)
        if makes and torch.device(kwargs.get("device") or "cpu") == DEVICE:
            return function(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        return function(*args, **kwargs)


def _values(tree: Any) -> Any:
    return tree_map_only(OnDevice, lambda each: each.value, tree)


@functools.cache
def _runs_on_cuda(function: Any) -> bool:
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return bool(has_kernel(function.name(), "CUDA")) or not torch.backends.cuda.is_built()


def _check(function: Any, name: str, args: Sequence[Any], tensors: Sequence[Tensor], kwargs: Any) -> None:
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type == "cpu":
        raise Misplaced(f"{name}: a CPU generator for a draw on the device")
    if not _runs_on_cuda(function):
        raise Misplaced(f"{function} has no CUDA kernel")
    if name in COPYING:
        return
    indices = [id(each) for each in args[1] if each is not None] if name in INDEXING else []
    for each in tensors:
        number = each.dim() == 0 and (torch.Tag.pointwise in function.tags or name in (*INDEXING, *POINTWISE))
        if not (isinstance(each, OnDevice) or id(each) in indices or number):
            raise Misplaced(f"{name}: a CPU tensor of shape {list(each.shape)} among tensors of the device")


def _wait(name: str, args: Sequence[Any], tensors: Sequence[Tensor], kwargs: Any) -> str:
    """What the host would wait for in an operation; "" if for nothing."""
    if name in READING:
        return name
    if name in COPYING:
        pinned = all(isinstance(each, OnDevice) or hasattr(each, "pinned") for each in tensors)
        free = pinned and (kwargs.get("non_blocking") or args[2:] == (True,))
        if not isinstance(tensors[-1], OnDevice):
            return "" if free else "copy to the device"
        to = DEVICE if isinstance(tensors[0], OnDevice) else "cpu"
        return "copy to the host" if torch.device(kwargs.get("device") or to) != DEVICE else ""
    if name in INDEXING:
        indices = [each for each in args[1] if each is not None]
        if any(not isinstance(each, OnDevice) for each in indices):
            return "an index on the host"
        filled = name != "index" and args[2].numel() == 1
        masked = any(each.dtype == torch.bool for each in indices)
        return "a mask as an index" if masked and not filled else ""
    return ""
