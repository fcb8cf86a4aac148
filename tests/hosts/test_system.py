"""Processor, memory, names."""

from __future__ import annotations

import os

from hosts.bootid import boot_id
from hosts.roots import Roots
from hosts.system import GIB, read_memory, read_system, reserve
from tests.hosts.trees import Tree, write


def test_a_whole_machine(tree: Tree) -> None:
    system = read_system(tree.machine(total_kib=127098456, available_kib=120000000).roots)
    assert system.host == "dankclaw"
    assert system.os == "Fedora Linux 43"
    assert system.kernel == "7.1.0"
    assert system.cpu.model == "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S"
    assert system.cpu.threads == 32
    assert "avx512f" in system.cpu.flags
    assert system.cpu.arch == os.uname().machine
    assert (system.memory.total, system.memory.available) == (127098456 * 1024, 120000000 * 1024)
    assert system.problems == ()


def test_threads_are_the_affinity_not_the_processors(tree: Tree) -> None:
    tree.machine(threads=32)
    write(tree.base / "proc/self/status", "Name: x\nCpus_allowed_list:\t0-3,16-19,31\n")
    assert read_system(tree.roots).cpu.threads == 9


def test_threads_without_an_affinity_are_the_listed_processors(tree: Tree) -> None:
    tree.machine(threads=6)
    write(tree.base / "proc/self/status", "Cpus_allowed_list:\tgarbage\n")
    assert read_system(tree.roots).cpu.threads == 6


def test_an_arm_board_names_its_model_in_the_device_tree(tree: Tree) -> None:
    tree.machine()
    write(tree.base / "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd sve\nCPU part\t: 0xd85\n")
    write(tree.base / "proc/device-tree/model", b"NVIDIA DGX Spark\0")
    cpu = read_system(tree.roots).cpu
    assert cpu.model == "NVIDIA DGX Spark"
    assert cpu.flags == ("fp", "asimd", "sve")


def test_an_old_kernel_has_only_free_memory(tree: Tree) -> None:
    write(tree.base / "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\n")
    memory, problems = read_memory(tree.roots)
    assert (memory.total, memory.available) == (1024000, 409600)
    assert problems == ()


def test_without_meminfo_the_problem_is_said_and_the_sizes_are_real(tree: Tree) -> None:
    write(tree.base / "proc/meminfo", b"\xff\xff\xffMemTotal\n")
    memory, problems = read_memory(tree.roots)
    assert memory.total > memory.available > 0
    assert [problem.code for problem in problems] == ["meminfo_unreadable"]


def test_an_empty_tree_still_has_a_name_and_no_os(tree: Tree) -> None:
    system = read_system(tree.roots)
    assert system.host
    assert system.os is None
    assert system.cpu.threads > 0


def test_os_release_may_lie_below_usr(tree: Tree) -> None:
    write(tree.base / "usr/lib/os-release", "NAME=NixOS\nPRETTY_NAME='NixOS 26.05'\n")
    assert read_system(tree.roots).os == "NixOS 26.05"


def test_the_reserve_is_8_gib_but_an_eighth_on_small_machines() -> None:
    assert reserve(128 * GIB) == 8 * GIB
    assert reserve(64 * GIB) == 8 * GIB
    assert reserve(16 * GIB) == 2 * GIB


def test_boot_id(tree: Tree) -> None:
    assert boot_id(tree.roots) is None
    assert boot_id(tree.machine().roots) == "0b1d8a5e-2c3f-4a5b-9c7d-1e2f3a4b5c6d"
    write(tree.base / "proc/sys/kernel/random/boot_id", "nonsense\n")
    assert boot_id(tree.roots) is None


def test_this_machine_has_one() -> None:
    assert boot_id() is not None
    assert read_system(Roots()).cpu.threads == len(os.sched_getaffinity(0))
