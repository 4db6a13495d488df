"""Which processes a container, cgroup or unit has: on trees of files as kernels and runtimes make them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lastbranch import capture
from lastbranch.capture.cgroups import cgroup_at, hierarchies, unit_called
from lastbranch.capture.containers import container_called, containers
from lastbranch.capture.foreign_binaries import _copy, _open_below
from lastbranch.capture.process_groups import EveryProcess, is_program
from lastbranch.errors import UnavailableError
from lastbranch.recording.recorders import record_file
from lastbranch.symbols.cache import Cache

WEB, DB, POD = "a1" * 32, "b2" * 32, "c3" * 32
V2 = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "30 20 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
)
KERNEL_THREAD = 0x00200000


class Machine:
    """A root folder with /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path, mounts: str) -> None:
        self.root, self.v2 = root, "cgroup2" in mounts
        self.write("proc/self/mountinfo", "20 1 8:1 / / rw - ext4 /dev/root rw\n" + mounts)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, pid: int, cgroup: str, *, flags: int = 0x400000, state: str = "S", namespace: int = 1) -> None:
        self.write(f"proc/{pid}/stat", f"{pid} (a) b) {state} 1 1 1 0 -1 {flags} 0 0\n")
        places = {"0:": ""} if self.v2 else {"2:cpu,cpuacct": "cpu,cpuacct", "1:name=systemd": "systemd"}
        self.write(f"proc/{pid}/cgroup", "".join(f"{words}:{cgroup}\n" for words in places))
        for folder in places.values():
            self._join(folder, cgroup, pid)
        (self.root / f"proc/{pid}/ns").mkdir()
        (self.root / f"proc/{pid}/ns/pid").symlink_to(f"pid:[{namespace}]")

    def _join(self, folder: str, cgroup: str, pid: int) -> None:
        at = self.root / "sys/fs/cgroup" / folder
        for part in ["", *cgroup.strip("/").split("/")]:
            at = at / part
            at.mkdir(parents=True, exist_ok=True)
            (at / "cgroup.procs").touch()
        with open(at / "cgroup.procs", "a") as procs:
            procs.write(f"{pid}\n")

    def __fspath__(self) -> str:
        return str(self.root)


@pytest.fixture(params=[V2, V1], ids=["v2", "v1"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def members_of(kind: str, name: str, machine: Machine) -> set[int]:
    find = {"container": container_called, "cgroup": cgroup_at, "unit": unit_called}[kind]
    return find(name, str(machine.root)).members()


CGROUPS = {
    "docker": (f"/system.slice/docker-{WEB}.scope", WEB),
    "docker without systemd": (f"/docker/{WEB}", WEB),
    "podman": (f"/machine.slice/libpod-{WEB}.scope/container", WEB),
    "podman without systemd": (f"/libpod_parent/libpod-{WEB}", WEB),
    "rootless podman": (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{WEB}.scope/container", WEB),
    "containerd in Kubernetes": (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{WEB}.scope", WEB),
    "Kubernetes without systemd": (f"/kubepods/burstable/pod12-34/{WEB}", WEB),
    "cri-o": (f"/kubepods.slice/crio-{WEB}.scope", WEB),
    "runc with systemd": ("/system.slice/runc-web.scope", "web"),
    "crun with systemd": ("/user.slice/crun-web.scope", "web"),
    "lxc": ("/lxc.payload.web/system.slice/cron.service", "web"),
    "nspawn": (r"/machine.slice/machine-web\x2d1.scope/payload", "web-1"),
    "nspawn as a service": ("/machine.slice/systemd-nspawn@web.service/payload", "web"),
}


def test_containers_are_known_by_their_cgroups(tmp_path: Path) -> None:
    for number, (kind, (cgroup, name)) in enumerate(CGROUPS.items()):
        machine = Machine(tmp_path / kind, (V1, V2)[number % 2])
        machine.process(10, cgroup)
        machine.process(11, cgroup + "/below")
        machine.process(12, "/system.slice/sshd.service")
        machine.process(13, f"/machine.slice/libpod-conmon-{WEB}.scope")
        assert [one.id for one in containers(str(machine.root))] == [name], kind
        assert members_of("container", name, machine) == {10, 11}, kind
        assert members_of("container", name[:5], machine) == {10, 11}, kind


FILES: dict[str, tuple[str, object]] = {
    "docker": (f"var/lib/docker/containers/{WEB}/config.v2.json", {"ID": WEB, "Name": "/web", "State": {"Pid": 10}}),
    "podman": ("var/lib/containers/storage/overlay-containers/containers.json", [{"id": WEB, "names": ["web"]}]),
    "podman, kept elsewhere": (
        "proc/20/cmdline",
        f"/usr/bin/conmon --api-version 1 -c {WEB} -u {WEB} -n web --exit-command-arg -n --exit-command-arg other",
    ),
    "rootless podman": (
        "home/me/.local/share/containers/storage/vfs-containers/volatile-containers.json",
        [{"id": WEB, "names": ["web"]}],
    ),
    "nerdctl": (
        f"run/containerd/io.containerd.runtime.v2.task/default/{WEB}/config.json",
        {"annotations": {"nerdctl/name": "web"}},
    ),
    "Kubernetes": (
        f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{WEB}/config.json",
        {"annotations": {"io.kubernetes.cri.container-name": "web", "io.kubernetes.cri.sandbox-name": "pod"}},
    ),
}


def test_containers_have_the_names_that_runtimes_keep(tmp_path: Path) -> None:
    for runtime, (path, contents) in FILES.items():
        machine = Machine(tmp_path / runtime, V2)
        machine.write(path, contents.replace(" ", "\0") if isinstance(contents, str) else json.dumps(contents))
        machine.write("proc/21/cmdline", "conmon\0-n\0no id\0")
        machine.write("run/runc/broken/state.json", "{")
        machine.write("run/crun/odd/status", '{"pid": null}')
        machine.process(10, f"/system.slice/docker-{WEB}.scope")
        machine.process(11, f"/system.slice/docker-{DB}.scope")
        assert members_of("container", "web", machine) == {10}, runtime
        assert members_of("container", DB[:6], machine) == {11}, runtime


@pytest.mark.parametrize(
    ("path", "contents"),
    [
        ("run/runc/web/state.json", {"id": "web", "init_process_pid": 10}),
        ("run/crun/web/status", {"pid": 10, "cgroup-path": "/any"}),
        ("run/systemd/machines/web", "NAME=web\nCLASS=container\nLEADER=10\n"),
    ],
    ids=["runc", "crun", "nspawn"],
)
def test_a_cgroup_of_any_name_is_that_of_the_first_process(path: str, contents: object, machine: Machine) -> None:
    machine.write(path, contents if isinstance(contents, str) else json.dumps(contents))
    machine.process(10, "/any")
    machine.process(11, "/any/below")
    machine.process(12, "/other")
    assert members_of("container", "web", machine) == {10, 11}


def test_without_a_cgroup_of_its_own_a_container_is_its_process_id_namespace(machine: Machine) -> None:
    machine.write("run/runc/web/state.json", json.dumps({"id": "web", "init_process_pid": 10}))
    (machine.root / "proc/self/ns").mkdir()
    (machine.root / "proc/self/ns/pid").symlink_to("pid:[1]")
    machine.process(10, "/", namespace=2)
    machine.process(11, "/", namespace=2)
    machine.process(12, "/", namespace=1)
    assert members_of("container", "web", machine) == {10, 11}


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("wep", "no container wep is running", "did you mean web"),
        ("zzz", "no container zzz is running", "the containers here: db"),
        ("", "2 containers match", WEB),
        ("old", "no container old is running", ""),
    ],
)
def test_what_is_wrong_with_a_container_is_said(name: str, message: str, hint: str, machine: Machine) -> None:
    machine.write(
        FILES["podman"][0],
        json.dumps([{"id": WEB, "names": ["web"]}, {"id": DB, "names": ["db"]}, {"id": POD, "names": ["old"]}]),
    )
    machine.process(10, f"/machine.slice/libpod-{WEB}.scope")
    machine.process(11, f"/machine.slice/libpod-{DB}.scope")
    with pytest.raises(UnavailableError) as raised:
        container_called(name, str(machine.root))
    assert message in str(raised.value)
    assert hint in (raised.value.hint or "")


def test_a_cgroup_has_the_processes_below_it_without_those_that_have_ended(machine: Machine) -> None:
    machine.process(10, "/a/b")
    machine.process(11, "/a/b/c")
    machine.process(12, "/a/b/c", state="Z")
    machine.process(13, "/a/b", flags=KERNEL_THREAD)
    machine.process(14, "/a")
    for name in ("/a/b", "a/b", "a/b/", "../../a/b"):
        assert members_of("cgroup", name, machine) == {10, 11}
    folder = hierarchies(str(machine.root))[-1].folder_of("/a/b")
    assert members_of("cgroup", folder.removeprefix(str(machine.root)), machine) == {10, 11}
    assert not is_program(12, str(machine.root))


def test_processes_that_join_a_cgroup_are_members_from_then_on(machine: Machine) -> None:
    machine.process(10, "/a")
    group = cgroup_at("/a", str(machine.root))
    machine.process(11, "/a/new")
    assert group.members() == {10, 11}
    assert not group.ends


def test_only_a_part_of_the_hierarchy_is_mounted_in_a_container(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2.replace(" / /sys", " /docker/x /sys"))
    machine.process(10, "/a")
    assert members_of("cgroup", "/docker/x/a", machine) == {10}
    with pytest.raises(UnavailableError, match="no cgroup /docker/y/a"):
        members_of("cgroup", "/docker/y/a", machine)


def test_hierarchies_of_version_1_may_have_the_same_path(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V1)
    machine.process(10, "/a")
    (machine.root / "sys/fs/cgroup/systemd/a/cgroup.procs").write_text("")
    group = cgroup_at("/a", str(machine.root))
    assert (group.members(), group.shown) == ({10}, "cgroup /a (cpu,cpuacct)")


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("/system.slice/ngin.service", "there is no cgroup", "did you mean /system.slice/nginx.service"),
        ("/empty", "cgroup /empty has no processes", "systemd-cgls"),
    ],
)
def test_what_is_wrong_with_a_cgroup_is_said(name: str, message: str, hint: str, machine: Machine) -> None:
    machine.process(10, "/system.slice/nginx.service")
    machine.process(11, "/empty", state="Z")
    with pytest.raises(UnavailableError) as raised:
        cgroup_at(name, str(machine.root))
    assert message in str(raised.value)
    assert hint in (raised.value.hint or "")


def test_without_control_groups_that_is_said(tmp_path: Path) -> None:
    for find in (cgroup_at, unit_called):
        with pytest.raises(UnavailableError, match="no control groups are mounted"):
            find("x", str(Machine(tmp_path, "")))


def test_units_of_the_system_come_before_those_of_users(machine: Machine) -> None:
    user = "/user.slice/user-1000.slice/user@1000.service/app.slice"
    machine.process(10, "/system.slice/dbus.service")
    machine.process(11, f"{user}/dbus.service")
    machine.process(12, f"{user}/editor.service/inner")
    machine.process(13, "/system.slice/_cpu.service")
    assert members_of("unit", "dbus", machine) == {10}
    assert members_of("unit", "editor.service", machine) == {12}
    assert members_of("unit", "user-1000.slice", machine) == {11, 12}
    assert members_of("unit", "cpu.service", machine) == {13}


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("ngin", "no unit ngin.service is running", "did you mean nginx.service"),
        ("tool", "several units are called tool.service", "--cgroup /user.slice"),
        ("dead", "unit dead.service has no processes", "systemctl status dead.service"),
    ],
)
def test_what_is_wrong_with_a_unit_is_said(name: str, message: str, hint: str, machine: Machine) -> None:
    machine.process(10, "/system.slice/nginx.service")
    machine.process(11, "/system.slice/dead.service", state="Z")
    for user in (71001, 71002):
        machine.process(user, f"/user.slice/user@{user}.service/app.slice/tool.service")
    with pytest.raises(UnavailableError) as raised:
        unit_called(name, str(machine.root))
    assert message in str(raised.value)
    assert hint in (raised.value.hint or "")


def test_every_process_is_each_of_this_user_and_no_thread_of_the_kernel() -> None:
    members = EveryProcess().members()
    assert os.getpid() in members
    assert all(os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid) for pid in members if os.path.exists(f"/proc/{pid}"))
    assert not any(status.startswith("Name:\tkthreadd") for status in map(status_of_process, members))


def test_who_looks_at_a_recording_of_all_processes_is_not_among_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    traced: list[set[int]] = []

    def record(targets: capture.Targets, *arguments: object) -> capture.Summary:
        assert targets.group is not None
        traced.append(targets.group.members())
        return capture.Summary()

    monkeypatch.setattr(capture, "record", record)
    lookers = [os.getppid(), os.getpid()]
    for left_out in ((), lookers[:1], lookers):
        viewer = SimpleNamespace(processes=left_out, show=lambda file: None)
        record_file(None, str(tmp_path / "it.tb5"), capture.Options(), engine="software", say=str, viewer=viewer)
    assert [[pid in members for pid in lookers] for members in traced] == [[True, True], [False, True], [False, False]]


def status_of_process(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def test_files_of_a_container_are_opened_below_its_root_whatever_links_say(tmp_path: Path) -> None:
    inside = tmp_path / "root"
    (inside / "lib").mkdir(parents=True)
    (inside / "secret").write_text("theirs")
    (tmp_path / "secret").write_text("ours")
    (inside / "absolute").symlink_to("/secret")
    (inside / "lib/up").symlink_to("../../../../secret")
    (inside / "hangs").symlink_to("/lib/fifo")
    os.mkfifo(inside / "lib/fifo")
    root = os.open(inside, os.O_PATH | os.O_DIRECTORY)
    try:
        for name in ("/absolute", "/lib/up", "/../secret"):
            with open(_open_below(root, name)) as file:
                assert file.read() == "theirs"
        for name in ("/hangs", "/lib", "/none", "/proc/self/root/secret"):
            with pytest.raises(OSError, match=name):
                _open_below(root, name)
    finally:
        os.close(root)


def test_a_file_of_a_container_that_says_it_is_huge_costs_no_other(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"), limit=1 << 20)
    os.mkdir(cache.folder)
    (tmp_path / "cache" / "kept").write_bytes(bytes(1 << 20))
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    descriptor = os.open(tmp_path / "sparse", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="larger than the cache"):
            _copy(descriptor, os.path.join(cache.folder, "theirs"), cache)
    finally:
        os.close(descriptor)
    assert os.listdir(cache.folder) == ["kept"]
