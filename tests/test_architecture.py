"""What the import linter cannot express: what the pure parts and the parts that travel may use of
the outside world.

Read from the syntax trees, so nothing is imported. Each rule is also tried on a line that breaks
it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import MappingProxyType

import pytest

from seerd.registry import BACKENDS, STORES
from tests.tiers import FASTEST

ROOT = Path(__file__).parent.parent
CORE = sorted((ROOT / "seerd" / "core").rglob("*.py"))
PLANNER = sorted((ROOT / "planner").rglob("*.py"))
AGENT = sorted((ROOT / "agent").rglob("*.py"))
FRAMEWORKS = [ROOT / "seerd" / "lightning.py", ROOT / "seerd" / "transformers.py"]
TRAINING_SIDE = [
    ROOT / "seerd" / "__init__.py",
    *FRAMEWORKS,
    *sorted((ROOT / "seerd" / "training").rglob("*.py")),
]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def each(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """One test over all these files, which names every file that fails: a case for each would cost
    more time than the checks.
    """

    def decorate(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            failures = []
            for path in paths:
                try:
                    check(path)
                except (AssertionError, SyntaxError) as error:
                    failures.append(f"{named(path)}: {error}")
            assert not failures, "\n".join(failures)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


def test_a_check_over_files_names_each_that_fails() -> None:
    def check(path: Path) -> None:
        assert path.stem == "good"

    each([Path("good.py")])(check)()
    with pytest.raises(AssertionError, match=r"(?s)bad\.py.*worse\.py"):
        each([ROOT / "bad.py", ROOT / "good.py", ROOT / "worse.py"])(check)()


TRIED_ON_MACOS = [
    path
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if named(path).startswith(FASTEST) and path != Path(__file__)
]
ADAPTERS = [
    path
    for room in ("backends", "stores")
    for path in sorted((ROOT / "seerd" / room).rglob("*.py"))
    if "ssh" not in path.parts and path.name != "bundle.py"
]
BENCHMARKS = sorted((ROOT / "bench").rglob("*.py"))
EVERYTHING = [
    p for name in ("seerd", "agent", "planner") for p in sorted((ROOT / name).rglob("*.py"))
]

PURE_STDLIB = frozenset(
    {
        "__future__",
        "abc",
        "ast",
        "bisect",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "difflib",
        "enum",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "math",
        "operator",
        "random",
        "re",
        "statistics",
        "string",
        "types",
        "typing",
    }
)
"""Modules that know no clock, no file, no network, no process. `random` is looked at more
closely.
"""

PURE_LIBRARIES = frozenset({"msgspec", "numpy", "scipy", "threadpoolctl"})

MODELLED = {
    "bohb.py": {"optuna", "warnings", "contextlib", "importlib.util"},
    "policies.py": {"importlib"},  # the registry imports a policy when it is first asked
}
"""The planner's one model that is somebody else's: seeded, kept in memory, imported only when the
policy is made.
"""


NOT_ON_MACOS = frozenset(
    {
        "os.O_DIRECT",
        "os.O_NOATIME",
        "os.O_PATH",
        "os.O_TMPFILE",
        "os.P_PIDFD",
        "os.copy_file_range",
        "os.dup3",
        "os.eventfd",
        "os.fdatasync",
        "os.getrandom",
        "os.getresgid",
        "os.getresuid",
        "os.getxattr",
        "os.listxattr",
        "os.memfd_create",
        "os.pidfd_open",
        "os.pipe2",
        "os.posix_fadvise",
        "os.posix_fallocate",
        "os.removexattr",
        "os.setns",
        "os.setresgid",
        "os.setresuid",
        "os.setxattr",
        "os.splice",
        "os.unshare",
        "os.waitid",
        "fcntl.F_ADD_SEALS",
        "fcntl.F_SETPIPE_SZ",
        "fcntl.ioctl",  # numbers of the kernel's
        "mmap.MAP_POPULATE",
        "select.epoll",
        "signal.SIGPOLL",
        "signal.SIGPWR",
        "signal.pidfd_send_signal",
        "signal.sigtimedwait",
        "signal.sigwaitinfo",
        "resource.RUSAGE_THREAD",
        "resource.getrusage",  # ru_maxrss: KiB there, bytes here
        "resource.prlimit",
        "socket.AF_NETLINK",
        "socket.AF_PACKET",
        "socket.AF_VSOCK",
        "socket.MSG_NOSIGNAL",
        "socket.SOCK_CLOEXEC",
        "socket.SOCK_NONBLOCK",
        "socket.SO_BINDTODEVICE",
        "socket.SO_PASSCRED",
        "socket.SO_PEERCRED",
        "socket.TCP_KEEPIDLE",
        "socket.TCP_QUICKACK",
        "socket.TCP_USER_TIMEOUT",
        "time.CLOCK_BOOTTIME",
        "time.pthread_getcpuclockid",
    }
)
NOT_ON_MACOS_BEGINS = ("os.sched_", "fcntl.F_OFD_", "os.EFD_", "os.SPLICE_", "signal.SIGRT")
LINUX_PROGRAMS = frozenset(
    {
        "flock",
        "free",
        "getent",
        "ip",
        "nproc",
        "nsenter",
        "poweroff",
        "prlimit",
        "setsid",
        "ss",
        "stdbuf",
        "systemctl",
        "systemd-run",
        "taskset",
        "timeout",
        "unshare",
    }
)
"""Programs that macOS has not, as they begin a command."""
LINUX_MODULES = frozenset({"ctypes", "spwd", "ossaudiodev"})
KERNEL_FILES = ("/proc", "/sys", "/dev/shm")
GUARDED = {
    "agent/remote_tasks.py": {"_command: /proc/"},  # of a machine that is logged in to
    "agent/letting_go.py": {"the module: /dev/shm"},  # of an instance of EC2
    "agent/family.py": {"the module: /sys/fs/cgroup"},  # read where the system is Linux
    # elsewhere they are not there, and nothing is known
    "seerd/training/host_memory.py": {"available: /proc", "available: /sys/fs/cgroup"},
    "agent/copying.py": {"_copy_piece: os.copy_file_range"},  # where there is one
    "agent/host.py": {
        "the module: /proc",  # read where the system is Linux, or its absence is an answer
        "finds_all_below: ctypes",
        "_prctl: ctypes",  # both called where the system is Linux
        "ticks: time.CLOCK_BOOTTIME",  # elsewhere there are none
        "_has_ended: os.waitid",  # called where the system is Linux
    },
    "seerd/clock.py": {"process_began: /proc/self/stat"},  # its absence is an answer
    "agent/nvml.py": {"the module: ctypes"},  # where GPUs are CUDA devices
    "agent/gpu_faults.py": {"the module: ctypes"},  # the same
    "agent/warm/script.py": {"end: ctypes"},  # of a fork, on Linux alone
    "agent/warm/identity.py": {  # in the warm process alone, which is there on Linux alone
        "remember: /proc/self/stat",
        "remember: ctypes",
        "show: ctypes",
        "die_with: ctypes",
    },
    "agent/warm/preload.py": {
        "_count_threads: /proc/self/task",
        "_traces: /proc/self/fd",
        "_is_gpu: /proc/self/fd/",
    },
    "agent/warm_starts.py": {  # of a warm process
        "ForkedProcess: os.pidfd_open",
        "_Process: socket.SO_PEERCRED",
        "_bind: /proc/self/fd/",
    },
    "seerd/training/attempt.py": {"write_imports: /proc/self/environ"},  # else none is known
    "agent/launch.py": {"_address_of: fcntl.ioctl"},  # refused elsewhere, which is an answer
    "agent/__main__.py": {"the module: poweroff", "the module: systemctl"},  # of rented instances
    "seerd/training/marks.py": {"_stack_signal: signal.SIGRTMIN"},  # if there is such a signal
    "seerd/commands/simulate.py": {"each: os.sched_getaffinity"},  # if there is such a function
}
"""What knows where it is: a local run and everything a laptop does works without it."""


def imports(tree: ast.AST) -> Iterator[str]:
    """Names of all modules imported anywhere in the file, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def imports_on_load(tree: ast.Module) -> Iterator[str]:
    """The same, outside functions."""
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from imports(node)


def foreign(tree: ast.AST, ours: tuple[str, ...]) -> list[str]:
    """Imports of pure code that are neither pure nor ours."""
    return [
        name
        for name in imports(tree)
        if name.split(".")[0] not in PURE_STDLIB | PURE_LIBRARIES and not name.startswith(ours)
    ]


def impure(tree: ast.AST) -> list[str]:
    """Uses of the shared random generator, files and terminals: what needs no import, or one that
    is allowed. A clock needs one that is not.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            found += [f"random.{alias.name}" for alias in node.names if alias.name != "Random"]
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "random"
        ):
            found += [f"random.{node.attr}"] if node.attr != "Random" else []
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"open", "print", "input"}
        ):
            found.append(f"{node.func.id}()")
    return found


def is_missing_on_macos(used: str) -> bool:
    """Whether `module.name` is a name that Python has on Linux alone, or that means another thing
    there.
    """
    return used in NOT_ON_MACOS or used.startswith(NOT_ON_MACOS_BEGINS)


def linux_only(tree: ast.Module) -> Iterator[str]:
    """`function: use` of whatever macOS has not: system calls, modules, programs, and files of the
    kernel.
    """
    for top in tree.body:
        place = getattr(top, "name", "") or "the module"
        for node in ast.walk(top):
            match node:
                case ast.Attribute(value=ast.Name(id=module), attr=name):
                    used = f"{module}.{name}"
                    found = is_missing_on_macos(used)
                case ast.Import(names=names):
                    used = ", ".join(alias.name for alias in names)
                    found = any(alias.name in LINUX_MODULES for alias in names)
                case ast.ImportFrom(module=str(used), names=names):
                    calls = {f"{used}.{alias.name}" for alias in names}
                    found = used in LINUX_MODULES or any(map(is_missing_on_macos, calls))
                case (
                    ast.List(elts=[ast.Constant(value=str(used)), *_])
                    | ast.Tuple(elts=[ast.Constant(value=str(used)), *_])
                ):
                    found = used in LINUX_PROGRAMS
                case ast.Constant(value=str(used)):
                    found = used.startswith(KERNEL_FILES)
                case _:
                    continue
            if found:
                yield f"{place}: {used}"


def beyond_stdlib(names: Iterator[str], ours: str) -> list[str]:
    """Imports that a bare Python does not have; `ours` is the package that the file itself belongs
    to.
    """
    return [
        n
        for n in names
        if n.split(".")[0] not in sys.stdlib_module_names and not (n + ".").startswith(ours + ".")
    ]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@each(CORE)
def test_the_core_imports_only_the_planner_and_what_is_pure(path: Path) -> None:
    assert foreign(tree_of(path), ("seerd.core", "seerd.planner", "seerd.units")) == []


@each(PLANNER)
def test_the_planner_imports_only_what_is_pure(path: Path) -> None:
    allowed = MODELLED.get(path.name, set())
    assert [
        name
        for name in foreign(tree_of(path), ("seerd.planner", "seerd.agent.gpu_shares"))
        if name not in allowed
    ] == []
    assert "optuna" not in imports_on_load(tree_of(path))


def test_policies_do_not_know_who_pays_for_idle_gpus() -> None:
    reads = {
        path.stem
        for path in PLANNER
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr == "whole"
    }
    assert reads == {
        "fixed_cluster",
        "hyperband",
        "job_parts",
        "adapted",
        "seer_capped",
        "windows",
    }


@each(CORE + PLANNER)
def test_pure_code_reads_no_clock_and_no_shared_generator(path: Path) -> None:
    assert impure(tree_of(path)) == []


@each(AGENT)
def test_the_agent_uses_only_the_standard_library(path: Path) -> None:
    assert beyond_stdlib(imports(tree_of(path)), "seerd.agent") == []


@each(TRAINING_SIDE)
def test_the_training_side_uses_only_the_standard_library_and_torch_and_numpy_when_asked(
    path: Path,
) -> None:
    """What is for a framework also uses that framework: who has it not does not import it."""
    tree = tree_of(path)
    asked = {n.split(".")[0] for n in beyond_stdlib(imports(tree), "seerd")}
    if path in FRAMEWORKS:
        assert asked == {path.stem}
        return
    assert beyond_stdlib(imports_on_load(tree), "seerd") == []
    assert asked <= {"torch", "numpy"}


ASKED_BEFORE = {
    "asking.py",
    "offer.py",
    "backend.py",
    "doctor.py",
    "examining.py",
    "keys.py",
    "sweeping.py",
}
BEFORE_A_RUN = ("seerd.agent", "seerd.planner.clouds", "seerd.spec", "seerd.stores")
"""What else the part of a backend may know that is asked before a run, or beside it."""


@each(ADAPTERS)
def test_adapters_know_nothing_of_ours_but_errors_units_messages_and_what_they_are_made_of(
    path: Path,
) -> None:
    allowed = (
        "seerd.errors",
        "seerd.units",
        "seerd.clock",
        "seerd.agent.copying",
        "seerd.agent.host",
        "seerd.agent.manifest",
        "seerd.agent.plainfile",
        "seerd.agent.protocol",
        "seerd.agent.wire",
        "seerd.aws",
        "seerd.planner.model",
        "seerd.registry",
        f"seerd.{path.relative_to(ROOT / 'seerd').parts[0]}",
        *(BEFORE_A_RUN if "doctor" in path.parts or path.name in ASKED_BEFORE else ()),
    )
    ours = [n for n in imports(tree_of(path)) if n.split(".")[0] == "seerd"]
    assert [n for n in ours if not n.startswith(allowed)] == []


@each(AGENT + TRAINING_SIDE)
def test_what_travels_parses_on_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


@each(EVERYTHING)
def test_nothing_imports_the_command_line_and_every_file_says_what_it_is_for(path: Path) -> None:
    tree = tree_of(path)
    assert not any(n.startswith("seerd.cli") for n in imports(tree))
    assert ast.get_docstring(tree)


MET_IN_HELP = {
    "seerd/api/handle.py": {"Best", "Run"},
    "seerd/api/notebook.py": {"Chart"},
    "seerd/lightning.py": {"Callback"},
    "seerd/training/data.py": {"Batch"},
    "seerd/training/trial.py": {"Trial"},
    "seerd/transformers.py": {"Callback"},
}
"""Classes that scripts and notebooks get: people read of their attributes in `help()`."""


def declared_and_listed(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Class and name of each field that a class declares and its docstring lists too, as
    "name  description".
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            lines = re.findall(r"^([\w, ]*\w)  +\S", ast.get_docstring(node) or "", re.MULTILINE)
            listed = {name for line in lines for name in line.split(", ")}
            yield from ((node.name, name) for name in declared(node) if name in listed)


def declared(node: ast.ClassDef) -> Iterator[str]:
    """Fields in the body of a class, and what its `__init__` sets that is no argument of it."""
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.FunctionDef(name="__init__", args=arguments):
                given = {a.arg for a in (*arguments.args, *arguments.kwonlyargs)}
                for child in ast.walk(statement):
                    match child:
                        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                            yield from {name} - given


@each(EVERYTHING)
def test_fields_are_described_beside_their_declaration_alone(path: Path) -> None:
    met_in_help = MET_IN_HELP.get(named(path), set())
    assert {name for name, _ in declared_and_listed(tree_of(path))} <= met_in_help


@pytest.mark.parametrize(
    "declaration",
    ["seed: int", "seed: int = 0", "def __init__(self):\n        self.seed = self.x = 0"],
)
def test_a_list_of_fields_in_a_docstring_is_seen(declaration: str) -> None:
    text = f'class A:\n    """A.\n\n    x, seed  these\n    """\n\n    {declaration}\n'
    assert ("A", "seed") in declared_and_listed(ast.parse(text))
    assert not list(declared_and_listed(ast.parse(text.replace("seed  these", "seed: these"))))
    arguments = text.replace("(self)", "(self, seed, x)").replace(" seed: int", " root: int")
    assert not list(declared_and_listed(ast.parse(arguments)))


def asks_for_the_provider(tree: ast.AST) -> bool:
    """Whether anything is compared with what `cluster.provider` says."""
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    sides = [side for node in compared for side in (node.left, *node.comparators)]
    return any(isinstance(side, ast.Attribute) and side.attr == "provider" for side in sides)


@each(EVERYTHING)
def test_nobody_asks_for_the_kind_of_a_cluster_by_its_name(path: Path) -> None:
    """What depends on it is a method of `seerd.backends.backend.Backend`."""
    assert not asks_for_the_provider(tree_of(path))


# A name that is not written out may be a timing's.
PATCHED_TIMING = re.compile(
    r"""(?xm)
    setattr\(\s*(?: [\w.]+,\s*["'] | ["'][\w.]+\. ) _?(?: [A-Z]\w*_S | PATIENCE ) ["']
    | patch\.setattr\(\s*[\w.]+,\s*[a-z_]\w*,
    | vars\([\w.]+\)\.update\(
    | ^\s*(?!self\.)[a-z_][\w.]*\._?(?: [A-Z]\w*_S | PATIENCE )\s=
    """
)


@each(sorted((ROOT / "tests").rglob("*.py")))
def test_timings_are_handed_to_what_is_tested_and_never_patched(path: Path) -> None:
    found = PATCHED_TIMING.search(path.read_text()) if path != Path(__file__) else None
    assert found is None, found and f"{found.group().strip()}: hand a shorter one in"


@pytest.mark.parametrize(
    ("line", "is_patch"),
    [
        ('monkeypatch.setattr(spot, "EVERY_S", 0.01)', True),
        ('monkeypatch.setattr(\n    "seerd.backends.ssh.remote.RECONNECT_S", 0.5\n)', True),
        ('monkeypatch.setattr(hangs, "PATIENCE", 0)', True),
        ("for name in names:\n    monkeypatch.setattr(agents, name, 0.5)", True),
        ("    vars(serve).update(constants)", True),
        ("dispatch.KEEP_S = 0.05", True),
        ('monkeypatch.setattr(copying, "PIECE", 10)', False),
        ("EVERY_S = 0.01", False),
        ("spot.watch(tell, every_s=0.01)", False),
    ],
)
def test_a_patched_timing_is_found(line: str, *, is_patch: bool) -> None:
    assert (PATCHED_TIMING.search(line) is not None) is is_patch


def test_every_planted_violation_is_found() -> None:
    assert asks_for_the_provider(ast.parse('if spec.cluster.provider == "ec2": pass'))
    assert foreign(ast.parse("def f():\n    import time"), ("seerd.planner",)) == ["time"]
    assert foreign(
        ast.parse("from seerd.shell import journal"), ("seerd.core", "seerd.planner")
    ) == ["seerd.shell"]
    assert foreign(ast.parse("from . import x"), ("seerd.planner",)) == ["."]
    assert impure(ast.parse("import random\nrandom.random()")) == ["random.random"]
    assert impure(ast.parse("from random import shuffle")) == ["random.shuffle"]
    assert foreign(ast.parse("from datetime import datetime"), ("seerd.planner",)) == ["datetime"]
    assert impure(ast.parse("open('x')")) == ["open()"]
    assert beyond_stdlib(
        imports(ast.parse("import seerd.agent.host, seerd.agents, torch")), "seerd.agent"
    ) == [
        "seerd.agents",
        "torch",
    ]
    with pytest.raises(SyntaxError):
        ast.parse("match x:\n    case 1: pass", feature_version=(3, 9))


@each([*EVERYTHING, ROOT / "cli.py"])
def test_what_macos_has_not_is_used_only_where_that_is_known(path: Path) -> None:
    assert set(linux_only(tree_of(path))) == GUARDED.get(named(path), set())


@each(TRIED_ON_MACOS)
def test_the_fast_tests_use_nothing_that_macos_has_not(path: Path) -> None:
    assert set(linux_only(tree_of(path))) == GUARDED.get(named(path), set())


@each(BENCHMARKS)
def test_benchmarks_use_nothing_of_the_tests(path: Path) -> None:
    assert [name for name in imports(tree_of(path)) if name.split(".")[0] == "tests"] == []


def test_every_planted_use_of_linux_is_found() -> None:
    uses = (
        "os.sched_getaffinity(0)",
        "os.pidfd_open(1)",
        "open('/proc/1/stat')",
        "open(f'/proc/{pid}/stat')",
        "fcntl.fcntl(1, fcntl.F_OFD_SETLK)",
        "import ctypes",
        "from ctypes import CDLL",
        "from os import pidfd_open",
        "subprocess.run(['setsid', 'true'])",
        "resource.getrusage(resource.RUSAGE_SELF)",
        "signal.SIGRTMIN + 7",
    )
    for use in uses:
        assert len(list(linux_only(ast.parse(f"def f():\n    {use}")))) == 1, use
    assert not list(linux_only(ast.parse("os.kill(1, 2); os.path.join('a', 'proc')")))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "seerd" else ("seerd", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, modules: Collection[str]) -> Iterator[str]:
    """Yield which of the modules are imported anywhere, also inside functions, but for types."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                for other in orelse:
                    yield from imported(other, modules)
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in modules)
            case ast.ImportFrom(module=str(name), names=names):
                for alias in names:
                    below = f"{name}.{alias.name}"
                    yield from {below if below in modules else name} & set(modules)
            case _:
                yield from imported(node, modules)


def check_no_circle(
    trees: Mapping[str, ast.AST], more: Mapping[str, Collection[str]] = MappingProxyType({})
) -> None:
    """Check that no module needs itself. `more`: what a module imports by a name in a text."""
    graph = {
        name: ({*imported(tree, trees)} | {*more.get(name, ())}) - {name}
        for name, tree in trees.items()
    }
    TopologicalSorter(graph).prepare()


BY_NAME = {
    "seerd.backends.by_name": {f"{folder}.backend" for folder in BACKENDS.values()},
    "seerd.spec.clusters": {f"{folder}.keys" for folder in BACKENDS.values()},
    "seerd.stores.by_address": {kind.module for kind in STORES.values()},
    "seerd.planner.policies": {
        f"seerd.planner.{name}"
        for name in re.findall(r'"(\w+)\.\w+"', (ROOT / "planner" / "policies.py").read_text())
    },
}
"""What is imported by a name in a table."""
BY_ANY_NAME = {
    "seerd",
    "seerd.agent.warm.preload",
    "seerd.commands",
    "seerd.shell.policy_main",
    "seerd.telling",
    "seerd.training.sharded",
}
"""What imports modules of somebody else, or what is asked for."""


def test_no_module_needs_itself() -> None:
    trees = {module_of(path): tree_of(path) for path in [*EVERYTHING, ROOT / "cli.py"]}
    assert set().union(*BY_NAME.values()) <= trees.keys()
    by_name = {
        name
        for name, tree in trees.items()
        if any("import_module" in ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Call))
    }
    assert by_name == BY_NAME.keys() | BY_ANY_NAME
    check_no_circle(trees, BY_NAME)


def test_a_circle_that_is_hidden_in_a_function_is_found() -> None:
    later = ast.parse("def f():\n    from b import c")
    for_types = ast.parse("if TYPE_CHECKING:\n    import b")
    with pytest.raises(CycleError):
        check_no_circle({"a": later, "b": ast.parse("import a")})
    check_no_circle({"a": for_types, "b": ast.parse("import a")})
    with pytest.raises(CycleError):
        check_no_circle({"a": for_types, "b": ast.parse("import a")}, {"a": {"b"}})


def test_no_two_different_things_have_one_name() -> None:
    """`Trial` is the core's and the one that scripts see: both are the trial. Each framework has its
    `Callback`, as scripts call it.
    """
    found = Counter(
        node.name
        for path in EVERYTHING
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, times in found.items() if times > 1} == {"Trial", "Callback"}


@each(sorted((ROOT / "bench").glob("*.py")))
def test_benches_import_only_what_is_there(path: Path) -> None:
    """No test runs most of them whole."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("seerd", "bench")):
            home = importlib.import_module(node.module or "")
            for name in (alias.name for alias in node.names):
                found = hasattr(home, name) or importlib.util.find_spec(f"{node.module}.{name}")
                assert found, f"{node.module} has no {name}"
