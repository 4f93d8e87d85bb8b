# SPDX-License-Identifier: Apache-2.0
"""The package beside the header; what needs no other rank."""

from __future__ import annotations

import array
import ctypes
import logging
import os
import re
import subprocess
import sys
import unittest
import weakref
from pathlib import Path
from unittest import mock

import flexcast
from flexcast import _abi, _buffers, _library, errors

# Set by `cargo xtask python-check`: tests may run far from the header.
HEADER = Path(os.environ.get("FLEXCAST_HEADER", Path(__file__).resolve().parents[3] / "host/capi/include/flexcast.h"))

C_PROGRAM = """
#include <flexcast.h>
#include <stdio.h>
int main(void) {{
{lines}
    return 0;
}}
"""


class Header(unittest.TestCase):
    """Constants and structures are those of flexcast.h."""

    def setUp(self) -> None:
        self.text = HEADER.read_text()
        self.numbers = {name: int(value) for name, value in re.findall(r"FLEXCAST_(\w+)\s*=?\s+(-?\d+)u?\b", self.text)}

    def test_constants(self) -> None:
        names = "BARRIER BROADCAST ALLGATHER ALLGATHERV ALLREDUCE REDUCE REDUCE_SCATTER_BLOCK REDUCE_SCATTER ALLTOALL ALLTOALLV".split()
        for name in names + "GATHER GATHERV SCATTER SCATTERV SPARSE_ALLREDUCE".split():
            self.assertEqual(getattr(_abi, name), self.numbers[f"OPERATION_{name}"], name)
        self.assertEqual(_abi.AWAITED, self.numbers["FLAG_AWAITED"])
        other = {"float32": "FLOAT", "float64": "DOUBLE", "complex64": "FLOAT_COMPLEX", "complex128": "DOUBLE_COMPLEX"}
        for name, number in _abi.DATA_TYPES.items():
            self.assertEqual(number, self.numbers[other.get(name, name.upper())], name)
        for name, number in _abi.REDUCTIONS.items():
            self.assertEqual(number, self.numbers["PRODUCT" if name == "prod" else name.upper()], name)
        pairs = {"float32": "FLOAT_INT", "float64": "DOUBLE_INT", "int64": "LONG_INT", "int32": "2INT", "int16": "SHORT_INT"}
        self.assertEqual(set(_abi.PAIR_TYPES), set(pairs))
        for name, number in _abi.PAIR_TYPES.items():
            self.assertEqual(number, self.numbers[pairs[name]], name)
        for name, number in _abi.LOG_LEVELS.items():
            self.assertEqual(number, self.numbers[f"LOG_{name.upper()}"], name)
        self.assertEqual(_abi.SETTINGS_BYTES, self.numbers["SETTINGS_BYTES"])
        self.assertEqual(_abi.NOT_SUPPORTED, self.numbers["NOT_SUPPORTED"])

    def test_errors_have_classes(self) -> None:
        codes = {number for name, number in self.numbers.items() if name.startswith("ERROR_")}
        self.assertLessEqual(set(errors.OF_CODE), codes | {_abi.NOT_SUPPORTED})
        for code in codes:
            self.assertEqual(errors.of_code(code, "text").code, code)

    def test_failures_have_names(self) -> None:
        names = {"CAUSE_": flexcast.Cause, "CODE_": flexcast.FailureCode, "WAITED_FOR_": flexcast.WaitedFor}
        for prefix, named in names.items():
            ours = [(name, number) for name, number in self.numbers.items() if name.startswith(prefix)]
            expected = {name.removeprefix(prefix): number for name, number in ours}
            expected.pop("NONE", None)
            self.assertEqual({one.name: one.value for one in named}, expected)
        failure = flexcast.Failure.of(self.numbers["CAUSE_CONNECTION"], self.numbers["CODE_CONNECTION_RESET"], 3, 1)
        self.assertEqual(failure.cause, flexcast.Cause.CONNECTION)
        self.assertEqual(failure.code, flexcast.FailureCode.CONNECTION_RESET)
        self.assertEqual((failure.failed_rank, failure.detecting_rank), (3, 1))
        self.assertIsNone(flexcast.Failure.of(0, 0, 0, 0))

    def test_structures(self) -> None:
        compiler = next((name for name in ("gcc", "cc") if subprocess.run(["which", name], capture_output=True).returncode == 0), None)
        if compiler is None:
            self.skipTest("no C compiler: apt-get install gcc")
        structures = {
            "flexcast_endpoint_options": _abi.EndpointOptions,
            "flexcast_config": _abi.Config,
            "flexcast_store_functions": _abi.StoreFunctions,
            "flexcast_collective": _abi.Collective,
            "flexcast_report": _abi.Report,
        }
        lines, expected = ["#include <stddef.h>"], []
        for name, structure in structures.items():
            lines.append(f'printf("%zu\\n", sizeof({name}));')
            expected.append(ctypes.sizeof(structure))
            for field, *_ in structure._fields_:
                lines.append(f'printf("%zu\\n", offsetof({name}, {field}));')
                expected.append(getattr(structure, field).offset)
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder) / "sizes.c", Path(folder) / "sizes"
            source.write_text(C_PROGRAM.format(lines="\n".join(lines[1:])).replace("#include <stdio.h>", "#include <stdio.h>\n#include <stddef.h>"))
            subprocess.run([compiler, "-I", str(HEADER.parent), str(source), "-o", str(program)], check=True)
            told = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split()
        self.assertEqual([int(number) for number in told], expected)


class Library(unittest.TestCase):
    """Loading, errors and the log."""

    def test_version(self) -> None:
        self.assertEqual(flexcast.version(), flexcast.__version__)

    def test_a_missing_library_is_named(self) -> None:
        program = "import flexcast\ntry: flexcast.version()\nexcept flexcast.LibraryNotFound as error: print(error)"
        environment = dict(os.environ, FLEXCAST_LIBRARY="/no/such/libflexcast.so")
        said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True).stdout
        self.assertIn("/no/such/libflexcast.so", said)
        self.assertIn("FLEXCAST_LIBRARY", said)

    def test_a_failure_has_its_class_and_code(self) -> None:
        with self.assertRaises(flexcast.EndpointError) as caught:
            flexcast.Endpoint.open("udp", "no-such-interface")
        self.assertEqual(caught.exception.code, 124)
        self.assertIn("no-such-interface", str(caught.exception))
        with self.assertRaises(flexcast.Error):
            flexcast.Endpoint.open("no-such-datapath")

    def test_environment_without_variables(self) -> None:
        names = ("FLEXCAST_RANK", "FLEXCAST_SIZE", "FLEXCAST_STORE")
        with mock.patch.dict(os.environ):
            for name in names:
                os.environ.pop(name, None)
            with self.assertRaises(flexcast.Error) as caught:
                flexcast.Communicator.from_environment()
        self.assertIn("FLEXCAST_", str(caught.exception))

    def test_a_closed_bootstrap_lets_go_of_its_store(self) -> None:
        class Store(dict[str, bytes]):
            set = dict.__setitem__

        store = Store()
        gone = weakref.ref(store)
        bootstrap = flexcast.Bootstrap.from_store(store, 0, 1)
        bootstrap.close()
        del store
        # The bootstrap itself stays, as in a communicator that a request of the program keeps.
        self.assertIsNone(gone())
        self.assertIsNotNone(bootstrap)

    def test_log_levels(self) -> None:
        with self.assertRaises(flexcast.ArgumentError):
            flexcast.log("loud")
        flexcast.log("debug", logging.getLogger("flexcast.test"))
        flexcast.log("warn", None)

    def test_log_lines_become_records(self) -> None:
        write = _library._to_logger(logging.getLogger("flexcast.test"))
        with self.assertLogs("flexcast.test", "DEBUG") as lines:
            write(None, 2, b"udp", b"a line")
            write(None, 5, b"udp", b"another")
        self.assertEqual(lines.output, ["WARNING:flexcast.test:udp: a line", "DEBUG:flexcast.test:udp: another"])


class Buffers(unittest.TestCase):
    """Memory by the buffer protocol."""

    def test_types(self) -> None:
        for code, name in (("b", "int8"), ("H", "uint16"), ("i", "int32"), ("Q", "uint64"), ("f", "float32"), ("d", "float64")):
            self.assertEqual(_buffers.Buffer(array.array(code, [1, 2]), writable=True, what="array").type, name)
        self.assertEqual(_buffers.Buffer(memoryview(bytearray(3)).cast("?"), writable=True, what="array").type, "bool")
        self.assertEqual(_buffers.Buffer(b"abc", writable=False, what="array").type, "uint8")

    def test_pairs(self) -> None:
        kinds = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int64": ctypes.c_long, "int32": ctypes.c_int, "int16": ctypes.c_short}
        for name, kind in kinds.items():
            for fields, pack, expected in (
                ([("value", kind), ("index", ctypes.c_int)], 0, name),
                ([("value", kind), ("index", ctypes.c_int)], 1, None),
                ([("value", kind), ("index", ctypes.c_uint)], 0, None),
                ([("value", kind)], 0, None),
                ([("value", kind), ("index", ctypes.c_int), ("more", ctypes.c_int)], 0, None),
            ):
                pair = type("Pair", (ctypes.Structure,), ({"_pack_": pack} if pack else {}) | {"_fields_": fields})
                buffer = _buffers.Buffer((pair * 2)(), writable=True, what="array")
                self.assertEqual((buffer.pair, buffer.type), (expected, None), (name, fields))

    def test_memory_is_not_copied_and_cannot_be_resized(self) -> None:
        memory = bytearray(16)
        buffer = _buffers.Buffer(memory, writable=True, what="out")
        ctypes.memset(buffer.address, 7, buffer.bytes)
        self.assertEqual(memory, b"\x07" * 16)
        with self.assertRaises(BufferError):
            memory.append(1)
        buffer.release()
        memory.append(1)

    def test_refusals(self) -> None:
        cases = [
            (memoryview(bytearray(8))[::2], False, flexcast.ArgumentError, "contiguous"),
            (b"abc", True, flexcast.ArgumentError, "read-only"),
            ([1, 2], False, flexcast.DataTypeError, "buffer protocol"),
        ]
        for given, writable, kind, said in cases:
            with self.assertRaisesRegex(kind, said):
                _buffers.Buffer(given, writable=writable, what="array")

    def test_numpy(self) -> None:
        try:
            import numpy
        except ImportError:
            self.skipTest("no numpy: pip install numpy")
        for name in ("float16", "complex64", "complex128", "bool", "int64", "uint8"):
            self.assertEqual(_buffers.Buffer(numpy.zeros(3, name), writable=True, what="array").type, name)
        self.assertIsNone(_buffers.Buffer(numpy.zeros(3, ">f4"), writable=False, what="array").type)
        self.assertEqual(_buffers.Buffer(numpy.zeros((0, 4)), writable=True, what="array").bytes, 0)
        read_only = numpy.zeros(3)
        read_only.flags.writeable = False
        cases = [
            (numpy.zeros((3, 4)).T, False, "contiguous"),
            (read_only, True, "read-only"),
            (numpy.array([{}]), False, "Python objects"),
        ]
        for given, writable, said in cases:
            with self.assertRaisesRegex(flexcast.ArgumentError, said):
                _buffers.Buffer(given, writable=writable, what="array")


if __name__ == "__main__":
    unittest.main()
