"""Stacks in the profiles of samply, the Firefox Profiler's format, with names from beside them."""

import bisect
import gzip
import json


def stacks(path, names_path):
    """The name of the outermost function of each sample; empty where it has none."""
    profile = read(path)
    names = Names(json.loads(open(names_path, "rb").read()))
    libraries = profile["libs"]
    for thread in profile["threads"]:
        prefixes, frames = thread["stackTable"]["prefix"], thread["stackTable"]["frame"]
        table, functions = thread["frameTable"], thread["funcTable"]
        resources, strings = thread["resourceTable"], thread["stringArray"]
        outermost = {}
        for stack in thread["samples"]["stack"]:
            if stack is None:
                continue
            if stack not in outermost:
                at = stack
                while prefixes[at] is not None:
                    at = prefixes[at]
                frame = frames[at]
                function = table["func"][frame]
                resource = functions["resource"][function]
                library = resources["lib"][resource] if resource >= 0 else None
                name = strings[functions["name"][function]]
                if library is not None:
                    name = names.of(libraries[library]["debugName"], table["address"][frame])
                outermost[stack] = name
            yield outermost[stack]


def read(path):
    """A file of JSON, which may be compressed."""
    data = open(path, "rb").read()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


class Names:
    """The functions of libraries."""

    def __init__(self, told):
        self.strings = told["string_table"]
        self.tables = {}
        for library in told["data"]:
            table = sorted((one["rva"], one["size"], one["symbol"])
                           for one in library["symbol_table"])
            self.tables[library["debug_name"]] = table

    def of(self, library, address):
        """The function at an address relative to its library."""
        table = self.tables.get(library, [])
        at = bisect.bisect(table, (address, float("inf"))) - 1
        if at < 0:
            return ""
        start, size, symbol = table[at]
        return self.strings[symbol] if address < start + max(size or 0, 1) else ""
