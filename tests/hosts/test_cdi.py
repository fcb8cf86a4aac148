"""CDI specifications, as nvidia-ctk and amd-ctk write them."""

from __future__ import annotations

from hosts import cdi
from tests.hosts.trees import Tree, write

YAML = """---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    name: not-a-device
    hookName: createContainer
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      name: nor-this
  name: "0"
- name: GPU-817285e3-758e-25e4-3b80-d38475e31dd6
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- containerEdits: {}
  name: all
kind: nvidia.com/gpu
"""
UUID = "GPU-817285e3-758e-25e4-3b80-d38475e31dd6"


def test_yaml_as_nvidia_ctk_writes_it(tree: Tree) -> None:
    write(tree.base / "etc/cdi/nvidia.yaml", YAML)
    (spec,) = cdi.read_specs(tree.roots)
    assert (spec.kind, spec.version, spec.names) == ("nvidia.com/gpu", "0.5.0", ("0", UUID, "all"))


def test_indented_lists_and_quotes(tree: Tree) -> None:
    text = "kind: \"nvidia.com/gpu\"\ncdiVersion: '0.6.0'\ndevices:\n  # two\n  - name: \"0\"\n  - name: '1'\n"
    write(tree.base / "etc/cdi/x.yml", text)
    (spec,) = cdi.read_specs(tree.roots)
    assert (spec.kind, spec.version, spec.names) == ("nvidia.com/gpu", "0.6.0", ("0", "1"))


def test_json(tree: Tree) -> None:
    write(tree.base / "run/cdi/amd.json", '{"cdiVersion":"0.6.0","kind":"amd.com/gpu","devices":[{"name":"0"}]}')
    (spec,) = cdi.read_specs(tree.roots)
    assert (spec.kind, spec.names) == ("amd.com/gpu", ("0",))


def test_a_broken_neighbour_does_no_harm(tree: Tree) -> None:
    write(tree.base / "etc/cdi/broken.json", '{"kind": [')
    write(tree.base / "etc/cdi/list.json", "[]")
    write(tree.base / "etc/cdi/broken.yaml", b"\xff\x00kind")
    write(tree.base / "etc/cdi/README", "kind: nvidia.com/gpu")
    write(tree.base / "etc/cdi/nvidia.yaml", YAML)
    assert [spec.kind for spec in cdi.read_specs(tree.roots)] == ["nvidia.com/gpu"]


def test_the_run_folder_wins_and_names_have_an_order(tree: Tree) -> None:
    write(tree.base / "etc/cdi/nvidia.yaml", YAML)
    write(tree.base / "run/cdi/nvidia.yaml", YAML.replace("0.5.0", "0.6.0"))
    specs = cdi.read_specs(tree.roots)
    found = cdi.device_name(specs, cdi.NVIDIA_KIND, (UUID, "0"))
    assert found is not None
    assert (found[0], found[1].version) == (f"nvidia.com/gpu={UUID}", "0.6.0")
    assert cdi.device_name(specs, cdi.NVIDIA_KIND, ("7",)) is None
    assert cdi.device_name(specs, "amd.com/gpu", ("0",)) is None
