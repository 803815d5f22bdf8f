"""Prints the declarations of libmlxcel's headers as Python source for ctypes: python/mlxcel imports them as mlxcel._abi.

    python/abi.py HEADERS LIBRARY VERSION      HEADERS: the folder include/mlxcel; LIBRARY: the name of the shared library's file

The headers are the only place where structs are described, so the Python module cannot disagree with the library that it was
packaged with. A declaration that this script does not understand is an error.
"""
import os
import re
import sys

SCALARS = {"int": "c_int", "bool": "c_bool", "size_t": "c_size_t", "int16_t": "c_int16", "int32_t": "c_int32", "int64_t": "c_int64", "uint32_t": "c_uint32",
           "uint64_t": "c_uint64", "float": "c_float", "double": "c_double", "char": "c_char"}


def strip(text):
    """Removes comments, the preprocessor's lines, extern "C" and attributes."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    text = re.sub(r"\bMLXCEL_(?:MUST_USE|NEVER_NULL)\b|\bMLXCEL_PRINTF\([^)]*\)", "", text)
    text = re.sub(r'extern "C" \{', "", text)
    return re.sub(r"\n\}\s*(?=\n|$)", "\n", text)  # the brace of extern "C" is alone on its line


class Declarations:
    def __init__(self):
        self.enums, self.structs, self.opaque, self.functions, self.constants = set(), {}, set(), {}, []

    def type_of(self, text):
        """The ctypes name of a type without a variable's name: "const char *", "mlxcel_engine_t **", "size_t"."""
        words = re.sub(r"\bconst\b", "", text).split()
        base, stars = words[0].rstrip("*"), text.count("*")
        if text.count("*") == 0 and base in SCALARS:
            return SCALARS[base]
        if stars == 0 and base in self.enums:
            return "c_int"
        if stars == 0 and base in self.structs:
            return base
        if stars == 0 and base in self.opaque:  # mlxcel_status_t is itself a pointer
            return "c_void_p"
        if stars == 1 and base == "char" and text.lstrip().startswith("const"):
            return "c_char_p"
        if stars > 0 and (base in SCALARS or base in self.enums or base in self.structs or base in self.opaque or base == "void"):
            return "c_void_p"
        sys.exit(f"python/abi.py: unknown type '{text.strip()}'")

    def fields_of(self, body):
        """The (name, type) pairs of a struct's body. One declaration may have several names: "const char *a, *b"."""
        fields = []
        for statement in filter(None, (" ".join(part.split()) for part in body.split(";"))):
            function = re.match(r"[^(]*\(\*(\w+)\)\(", statement)
            if function:
                fields.append((function.group(1), "c_void_p"))
                continue
            private = re.match(r"(?:const )?struct \w+ \*(\w+)$", statement)
            if private:  # a pointer to a struct that no installed header declares
                fields.append((private.group(1), "c_void_p"))
                continue
            base, names = re.match(r"((?:const )?\w+(?: const)?)\s*(.*)", statement).groups()
            for name in names.split(","):
                stars, name, count = re.match(r"\s*((?:\*|const|\s)*)(\w+)(?:\[(\d+)\])?\s*$", name).groups()
                kind = self.type_of(f"{base} {stars}")
                fields.append((name, f"{kind} * {count}" if count else kind))
        return fields

    def add_enum(self, name, body):
        value = -1
        for entry in filter(None, (part.strip() for part in body.split(","))):
            symbol, _, given = (part.strip() for part in entry.partition("="))
            value = int(given, 0) if given else value + 1
            self.constants.append((symbol, value))
        self.enums.add(name)

    def add_function(self, statement):
        found = re.match(r"(.*?[ *])(mlxcel_\w+)\((.*)\)$", statement)
        if not found:
            sys.exit(f"python/abi.py: not a declaration of a function: '{statement}'")
        result, name, parameters = found.groups()
        kinds = []
        if "..." in parameters:
            return  # ctypes cannot describe variable arguments
        flat = re.sub(r"[\w ]*\(\*\w+\)\([^()]*\)", "void *callback", parameters)
        for parameter in flat.split(","):
            if parameter.strip() == "void":
                continue
            kinds.append(self.type_of(re.sub(r"\w+$", "", parameter.strip())))
        self.functions[name] = ("None" if result.split() == ["void"] else self.type_of(result), kinds)

    def read(self, text):
        for found in re.finditer(r"typedef enum \w+ \{([^}]*)\} (\w+);", text):
            self.add_enum(found.group(2), found.group(1))
        for found in re.finditer(r"typedef struct \w+ \*?(\w+);", text):
            self.opaque.add(found.group(1))
        for found in re.finditer(r"typedef struct \w+ \{([^}]*)\} (\w+);", text):
            self.structs[found.group(2)] = self.fields_of(found.group(1))
        text = re.sub(r"typedef (?:enum|struct) \w+ \{[^}]*\} \w+;|typedef struct \w+ \*?\w+;", "", text)
        for statement in filter(None, (" ".join(part.split()) for part in text.split(";"))):
            self.add_function(statement)


def main():
    folder, library, version = sys.argv[1:4]
    declarations = Declarations()
    # mlxcel.h uses the types of the other headers, and status.h is used by all.
    for name in sorted(os.listdir(folder), key=lambda name: (name == "mlxcel.h", name != "status.h", name)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            text = file.read()
        declarations.constants += re.findall(r"^#define (MLXCEL_\w+) (\d+)\b", text, re.M)
        declarations.read(strip(text))
    print('"""Written by python/abi.py from the headers of libmlxcel."""')
    print("from ctypes import Structure, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p")
    print(f"\nLIBRARY = {library!r}\nVERSION = {version!r}")
    for symbol, value in declarations.constants:
        print(f"{symbol} = {value}")
    for name, fields in declarations.structs.items():
        print(f"\n\nclass {name}(Structure):\n    _fields_ = [")
        for field, kind in fields:
            print(f'        ("{field}", {kind}),')
        print("    ]")
    print("\n\nFUNCTIONS = {")
    for name, (result, kinds) in declarations.functions.items():
        print(f'    "{name}": ({result}, [{", ".join(kinds)}]),')
    print("}")


main()
