"""Element types: what goes in comes out, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import slackline

NATIVE = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip

OPAQUE = {
    "bfloat16": "uint16",
    "float8_e3m4": "uint8",
    "float8_e4m3": "uint8",
    "float8_e4m3b11fnuz": "uint8",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}


def bits(size: int) -> np.ndarray[Any, Any]:
    """Bytes that no element type has as its zeros, and that are 0 or 1 for bool."""
    return (np.arange(size) * 7 % 256).astype("uint8")


def brought(table: Any, tensors: dict[str, Any]) -> slackline.Snapshot:
    with slackline.Publisher(table, transport="tcp") as publisher:
        publisher.publish(tensors)
        with slackline.Reader(publisher.address) as reader:
            return reader.pull()


def test_every_numpy_type_comes_back_with_its_own_type_and_bits() -> None:
    arrays = {}
    for name in NATIVE:
        raw = bits(12 * np.dtype(name).itemsize)
        arrays[name] = (raw % 2).astype(bool).reshape(3, 4) if name == "bool" else raw.view(name).reshape(3, 4)
    snapshot = brought(arrays, arrays)
    for name, array in arrays.items():
        view = snapshot[name]
        assert (view.dtype, view.shape) == (name, (3, 4))
        assert view.numpy().dtype == array.dtype
        assert view.numpy().tobytes() == array.tobytes()
        assert np.from_dlpack(view).dtype == array.dtype


def test_types_that_numpy_lacks_come_back_bit_by_bit() -> None:
    table = [slackline.TensorSpec(name, name, (5,)) for name in OPAQUE]
    raw = {name: bits(5 * np.dtype(plain).itemsize).view(plain) for name, plain in OPAQUE.items()}
    snapshot = brought(table, raw)
    for name, plain in OPAQUE.items():
        assert snapshot[name].dtype == name
        assert snapshot[name].numpy().dtype == np.dtype(plain)
        assert snapshot[name].numpy().tobytes() == raw[name].tobytes()


def test_elements_that_share_bytes_are_published_and_read_as_bytes() -> None:
    table = [
        slackline.TensorSpec("four", "float4_e2m1fn", (3, 5)),
        slackline.TensorSpec("six", "float6_e2m3fn", (4,)),
    ]
    # 15 times 4 bits are 8 bytes, and 4 times 6 bits are 3.
    snapshot = brought(table, {"four": bits(8), "six": bits(3)})
    assert (snapshot["four"].shape, snapshot["four"].nbytes, snapshot["six"].nbytes) == ((3, 5), 8, 3)
    np.testing.assert_array_equal(snapshot["four"].numpy(), bits(8))
    np.testing.assert_array_equal(snapshot["six"].numpy(), bits(3))


def test_arrays_of_ml_dtypes_are_taken_by_name() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = {
        "brain": np.array([1.5, -2, 3e38], ml_dtypes.bfloat16),
        "small": np.array([1.5, -2, 448], ml_dtypes.float8_e4m3fn),
    }
    snapshot = brought(arrays, arrays)
    assert [spec.dtype for spec in (snapshot["brain"], snapshot["small"])] == ["bfloat16", "float8_e4m3fn"]
    # 1.5 is 0 01111111 1000000 in bfloat16, and 0 0111 100 in e4m3.
    assert snapshot["brain"].numpy()[0] == 0b0_01111111_1000000
    assert snapshot["small"].numpy()[0] == 0b0_0111_100
    assert (snapshot["brain"].numpy().view(ml_dtypes.bfloat16) == arrays["brain"]).all()
    # The name is the same in the other order of bytes, which no table has.
    swapped = arrays["brain"].byteswap().view(arrays["brain"].dtype.newbyteorder(">"))
    with pytest.raises(slackline.LayoutMismatch):
        brought(arrays, {**arrays, "brain": swapped})


def test_bfloat16_goes_out_by_dlpack_under_its_own_code() -> None:
    snapshot = brought([slackline.TensorSpec("x", "torch.bfloat16", (2,))], {"x": np.array([0, 1], "uint16")})
    assert snapshot["x"].dtype == "bfloat16"
    # numpy's own DLPack has no such type, and must be told so by the code and not take it for uint16.
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(snapshot["x"])


def test_types_that_no_table_has_are_refused() -> None:
    for array in (
        np.zeros(3, "datetime64[s]"),
        np.zeros(3, [("x", "f4")]),
        np.zeros(3, np.longdouble),
        np.zeros(3, ">i4"),
        np.array(["text"]),
        [1, 2],
    ):
        with pytest.raises(slackline.LayoutMismatch):
            slackline.Publisher({"x": array})
    with pytest.raises(slackline.LayoutMismatch):
        slackline.TensorSpec("x", "float7", (1,))


def framed(dtype: str, values: Any, shape: tuple[int, ...] = (3,)) -> np.ndarray[Any, Any]:
    """The bits that a reader gets of `frame[name][...] = values`."""
    with slackline.Publisher([slackline.TensorSpec("x", dtype, shape)]) as publisher:
        with publisher.frame() as frame:
            frame["x"][...] = values
        with slackline.Reader(publisher.address) as reader:
            return np.array(reader.pull()["x"].numpy())


@pytest.mark.parametrize("name", list(OPAQUE))
def test_values_of_types_that_numpy_lacks_are_written_to_a_frame_by_their_bits(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([1, 2, 0.5], getattr(ml_dtypes, name))
    expected = values.view(OPAQUE[name])
    assert (framed(name, values) == expected).all()
    assert (framed(name, expected) == expected).all()
    # As numpy does it: with gaps, and to each row.
    spread = np.repeat(values, 2)[::2]
    assert (framed(name, spread, (4, 3)) == np.stack([expected] * 4)).all()
    assert (framed(name, values[0]) == expected[0]).all()
    with slackline.Publisher({"x": values}) as publisher, slackline.Reader(publisher.address) as reader:
        publisher.publish({"x": values})
        assert (framed(name, reader.pull()["x"]) == expected).all()


def test_values_that_numpy_cannot_turn_into_a_type_that_it_lacks_are_refused() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    wrong: list[Any] = [
        1.5, 1, [1.5] * 3, np.ones(3, "float32"), np.ones(3, "int16"), np.ones(3, "float16"), np.ones(3, "uint8"),
        np.ones(3, ml_dtypes.float8_e5m2), np.float32(1), None,
    ]  # fmt: skip
    for values in wrong:
        with pytest.raises(slackline.LayoutMismatch, match="numpy has no bfloat16, and .* or of its bits as uint16"):
            framed("bfloat16", values)
    with pytest.raises(slackline.LayoutMismatch, match="give the bytes of the elements, as uint8"):
        framed("float4_e2m1fn", np.ones(3, "float32"))
    assert (framed("float4_e2m1fn", np.array([1, 2], "uint8")) == [1, 2]).all()


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("float8_e5m2", "float8_e4m3"),
        ("bfloat16", "float32"),
        ("bfloat16", "uint16"),
        ("float32", "bfloat16"),
        ("float6_e2m3fn", "float6_e3m2fn"),
    ],
)
def test_a_view_of_another_type_is_not_written_as_bits(given: str, own: str) -> None:
    with slackline.Publisher([slackline.TensorSpec("x", given, (4,))]) as publisher:
        with slackline.Reader(publisher.address) as reader:
            view = reader.pull()["x"]
    with pytest.raises(slackline.LayoutMismatch, match=f"numpy cannot turn {given} into {own}"):
        framed(own, view, (4,))
    with slackline.Publisher([slackline.TensorSpec("x", own, (4,))]) as publisher:
        with pytest.raises(slackline.LayoutMismatch, match=f"an array of {given} "):
            publisher.publish({"x": view})


def test_a_view_is_written_to_a_view_of_its_type_or_of_its_bits_and_numpy_turns_numbers() -> None:
    table = {"u16": np.array([0x3F80] * 3, "uint16"), "f32": np.ones(3, "float32")}
    with slackline.Publisher(table) as publisher, slackline.Reader(publisher.address) as reader:
        publisher.publish(table)
        snapshot = reader.pull()
        assert (framed("bfloat16", snapshot["u16"]) == 0x3F80).all()
        assert (framed("float64", snapshot["f32"]) == 1).all()


@pytest.mark.parametrize("name", ["float32", *OPAQUE, "float4_e2m1fn"])
def test_a_table_of_views_has_their_types_and_takes_them(name: str) -> None:
    specs = [slackline.TensorSpec("x", name, (3, 5))]
    with slackline.Publisher(specs) as first, slackline.Reader(first.address) as reader:
        snapshot = reader.pull()
        with slackline.Publisher(snapshot) as second:
            assert second.metadata == specs
            assert second.publish(snapshot) == 1


def test_what_cannot_be_looked_at_is_the_cause_of_the_refusal() -> None:
    released = memoryview(bytearray(6))
    released.release()
    with pytest.raises(slackline.LayoutMismatch) as caught:
        framed("bfloat16", released)
    assert "released" in str(caught.value.__cause__)
