"""Writes the struct layouts that pypjrt generated from the PJRT headers, one struct a line.

python crates/tpu-pjrt-sys/tests/dump_layouts.py > crates/tpu-pjrt-sys/tests/layouts.txt

<struct> <sizeof> <struct_size or -> <field>:<offset>:<size> ...
"""

import ctypes

import pypjrt._abi.pjrt_0_114 as abi

for name in sorted(dir(abi)):
    struct = getattr(abi, name)
    if not (isinstance(struct, type) and issubclass(struct, ctypes.Structure)) or name.startswith("_"):
        continue
    fields = []
    for field, ctype, *_ in struct._fields_:
        public = "value" if field.startswith("_anon") else field  # C has no name for it
        fields.append(f"{public}:{getattr(struct, field).offset}:{ctypes.sizeof(ctype)}")
    print(name, ctypes.sizeof(struct), getattr(abi, name + "_STRUCT_SIZE", "-"), *fields)
