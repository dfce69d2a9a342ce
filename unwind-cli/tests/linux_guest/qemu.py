"""What the scripts of this folder need of QEMU: its machine protocol, and a file system to boot."""
import json
import socket
import time


class Qmp:
    """A connection to QEMU's machine protocol."""

    def __init__(self, path):
        for _ in range(100):
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(path)
                break
            except OSError:
                time.sleep(0.05)
        self.file = self.socket.makefile("rw")
        self.file.readline()
        self.execute("qmp_capabilities")

    def execute(self, command, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()
        while True:
            answer = json.loads(self.file.readline())
            if "error" in answer:
                raise RuntimeError(answer)
            if "return" in answer:
                return answer["return"]


def initrd(files):
    """A cpio archive of the files, which are paths here by their names in the guest; the folders are made."""
    entries = {}
    for name, path in files.items():
        parts = name.split("/")
        for end in range(1, len(parts)):
            entries["/".join(parts[:end])] = (0o040755, b"")
        with open(path, "rb") as file:
            entries[name] = (0o100755, file.read())
    archive = b""
    for name, (mode, content) in [*entries.items(), ("TRAILER!!!", (0, b""))]:
        fields = [1, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08x" % field for field in fields)
        for part in (head + name.encode() + b"\0", content):
            archive += part + b"\0" * (-len(part) % 4)
    return archive
