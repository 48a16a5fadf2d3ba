"""Tensors as bytes: whatever goes in comes out, to the bit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fuzzer.tensors import content_hash, decode, encode, raw_bytes

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
]


def of_bits(data: bytes, dtype: torch.dtype) -> Tensor:
    """As many elements as whole ones fit into `data`, which is taken as their memory."""
    size = torch.empty(0, dtype=dtype).element_size()
    data = data[: len(data) // size * size]
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype) if data else torch.empty(0, dtype=dtype)


@pytest.mark.filterwarnings("ignore:.*omplex")
class TestRoundTrip:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @given(data=st.binary(max_size=64))
    def test_every_bit_of_every_dtype_survives(self, dtype: torch.dtype, data: bytes) -> None:
        tensor = of_bits(data, dtype)
        back = decode(encode({"x": tensor}))["x"]
        assert back.dtype == dtype
        assert back.shape == tensor.shape
        assert raw_bytes(back) == raw_bytes(tensor)

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1), (2, 3, 4)])
    def test_shapes_survive_empty_ones_too(self, shape: tuple[int, ...]) -> None:
        assert decode(encode({"x": torch.ones(shape)}))["x"].shape == shape

    @given(st.lists(st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable()), unique=True, max_size=6))
    def test_names_and_their_order_survive(self, names: list[str]) -> None:
        assert list(decode(encode({name: torch.zeros(1) for name in names}))) == names

    def test_views_are_written_as_they_read(self) -> None:
        base = torch.arange(12.0).reshape(3, 4)
        views = {
            "transposed": base.t(),
            "expanded": torch.tensor([7.0]).expand(3),
            "part": base[1:, ::2],
            "conjugate": torch.tensor([1 + 2j]).conj(),
            "negative": torch.tensor([1 + 2j]).conj().imag,
            "again": base,
        }
        back = decode(encode(views))
        assert back["transposed"].tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
        assert back["expanded"].tolist() == [7, 7, 7]
        assert back["part"].tolist() == [[4, 6], [8, 10]]
        assert back["conjugate"].tolist() == [1 - 2j]
        assert back["negative"].tolist() == [-2]
        assert torch.equal(back["again"], base)

    def test_a_parameter_comes_back_as_a_plain_tensor(self) -> None:
        back = decode(encode({"p": torch.nn.Parameter(torch.ones(2))}))["p"]
        assert type(back) is Tensor
        assert not back.requires_grad


@pytest.mark.filterwarnings("ignore:Sparse")
class TestSparse:
    DENSE = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, float("nan"), 0.0]])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
    @pytest.mark.parametrize(
        "layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
    )
    def test_layout_and_values_survive(self, layout: torch.layout, dtype: torch.dtype) -> None:
        blocks = (1, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
        tensor = self.DENSE.to(dtype).to_sparse(layout=layout, blocksize=blocks)
        back = decode(encode({"x": tensor}))["x"]
        assert (back.layout, back.dtype, back.shape) == (layout, dtype, tensor.shape)
        assert raw_bytes(back) == raw_bytes(tensor)
        assert torch.equal(back.to_dense().isnan(), self.DENSE.isnan())

    def test_explicit_zeros_and_duplicates_survive(self) -> None:
        tensor = torch.sparse_coo_tensor(torch.tensor([[1, 1, 2]]), torch.tensor([1.0, 2.0, -0.0]), (4,))
        back = decode(encode({"x": tensor}))["x"]
        assert not back.is_coalesced()
        assert back._indices().tolist() == [[1, 1, 2]]
        assert raw_bytes(back._values()) == raw_bytes(torch.tensor([1.0, 2.0, -0.0]))

    def test_dense_dimensions_survive(self) -> None:
        tensor = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, 2), (3, 2)).coalesce()
        back = decode(encode({"x": tensor, "y": torch.zeros(1)}))["x"]
        assert (back.sparse_dim(), back.dense_dim(), back.is_coalesced()) == (1, 1, True)

    def test_an_empty_one_survives(self) -> None:
        back = decode(encode({"x": torch.zeros(2, 3).to_sparse()}))["x"]
        assert (back.shape, back._nnz()) == ((2, 3), 0)


class TestForeignBytes:
    @given(st.binary(max_size=200))
    def test_any_bytes_are_a_value_error(self, data: bytes) -> None:
        with pytest.raises(ValueError, match="safetensors"):
            decode(data)

    @given(st.data())
    def test_a_cut_or_damaged_file_is_a_value_error_or_some_tensors(self, data: st.DataObject) -> None:
        whole = encode({"x": torch.arange(4.0), "z": torch.tensor([1j])})
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = data.draw(
            st.sampled_from(
                [whole[:at], whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :]]
            )
        )
        try:
            found = decode(damaged)
        except ValueError:
            return
        assert all(isinstance(tensor, Tensor) for tensor in found.values())

    @pytest.mark.parametrize(
        "metadata",
        [
            {"order": '["y"]'},
            {"order": "7"},
            {"order": '[["x"]]'},
            {"order": "nonsense"},
            {"xbfuzz": '{"x": "unheard-of"}'},
            {"xbfuzz": '{"x": "complex"}'},
            {"xbfuzz": '{"x": {"layout": "sparse_coo", "size": [3]}}'},
            {"xbfuzz": '{"x": {}}'},
            {"xbfuzz": "[1]"},
        ],
    )
    def test_marks_that_do_not_fit_are_a_value_error(self, metadata: dict[str, str]) -> None:
        data = safetensors.torch.save({"x": torch.ones(3)}, metadata=metadata)
        with pytest.raises(ValueError):  # noqa: PT011 - some texts are those of the JSON reader
            decode(data)

    def test_indices_outside_a_sparse_tensor_are_a_value_error(self) -> None:
        mark = {"x": {"layout": "sparse_coo", "size": [3], "coalesced": True}}
        parts = {"x\0_indices": torch.tensor([[99]]), "x\0_values": torch.ones(1)}
        data = safetensors.torch.save(parts, metadata={"order": '["x"]', "xbfuzz": json.dumps(mark)})
        with pytest.raises(ValueError, match="not a safetensors file"):
            decode(data)

    def test_a_file_of_another_program_is_read_by_name(self) -> None:
        assert list(decode(safetensors.torch.save({"b": torch.ones(1), "a": torch.zeros(1)}))) == ["a", "b"]

    @pytest.mark.parametrize("name", ["\0", "a\0", "\0_values"])
    def test_a_name_may_hold_what_separates_the_parts_of_a_sparse_one(self, name: str) -> None:
        tensors = {name: torch.ones(2), name + "s": torch.eye(2).to_sparse_coo()}
        assert list(decode(encode(tensors))) == list(tensors)

    def test_the_same_tensors_are_the_same_bytes_in_every_process(self) -> None:
        code = "import sys, torch; from fuzzer.tensors import encode; "
        code += "sys.stdout.buffer.write(encode({'b': torch.ones(3, dtype=torch.complex64), 'a': torch.zeros(2)}))"
        runs = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(3)}
        assert runs == {encode({"b": torch.ones(3, dtype=torch.complex64), "a": torch.zeros(2)})}


class TestContentHash:
    def test_it_changes_with_any_bit_the_name_the_shape_and_the_dtype(self) -> None:
        zeros = torch.zeros(4)
        others = [
            {"x": zeros},
            {"y": zeros},
            {"x": -zeros},
            {"x": zeros.reshape(2, 2)},
            {"x": zeros.to(torch.int32)},
            {"x": torch.tensor([0.0, 0.0, 0.0, 2.0**-149])},
            {"x": torch.full((4,), float("nan"))},
            {"x": torch.full((4,), -1, dtype=torch.int32).view(torch.float32)},
            {},
        ]
        assert len({content_hash(tensors) for tensors in others}) == len(others)

    def test_it_does_not_change_with_the_memory_layout(self) -> None:
        x = torch.arange(6.0).reshape(2, 3)
        assert content_hash({"x": x}) == content_hash({"x": x.t().contiguous().t()})
