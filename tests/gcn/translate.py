"""Translates an AMD code object of the library's kernels to C, which the simulated HIP driver runs.

    translate.py CODE_OBJECT OUT.c
    translate.py --tools          says which llvm-objdump there are

A kernel becomes a function that runs one wave. What an instruction does stands in semantics.h, one
function for each, named like the instruction without its encoding; here is only what llvm-objdump
prints: registers, constants, labels, modifiers. What is not known is an error, never a guess.
Status 77: there is no llvm-objdump that knows the target.
"""
import argparse
import pathlib
import re
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from code_object import CodeObject, Unknown, tools
from parts import in_parts, shared

VCC, NOWHERE, EXEC = 106, 125, 126
NAMED = {"vcc_lo": VCC, "vcc_hi": VCC + 1, "exec_lo": EXEC, "exec_hi": EXEC + 1, "m0": 124}
PAIRS = {"vcc": VCC, "exec": EXEC}
# Inline constants of f32 and f64: the other bits are zeros.
FLOATS = {"0.5": (0x3F000000, 0x3FE), "1.0": (0x3F800000, 0x3FF), "2.0": (0x40000000, 0x400),
          "4.0": (0x40800000, 0x401)}
# What follows only calls operations: to optimize it takes long and gains nothing.
CALLS_ONLY = """#if defined(__clang__)
#pragma clang optimize off
#else
#pragma GCC optimize(0)
#endif"""
# Hints, and waits for stores, which are done at once here.
NOTHING = {"s_nop", "s_clause", "s_inst_prefetch", "s_code_end", "buffer_gl0_inv",
           "s_waitcnt_vscnt"}
# The same instruction by its name in either generation.
SAME = {"v_add_nc_u32": "v_add_u32", "v_sub_nc_u32": "v_sub_u32", "v_subrev_nc_u32": "v_subrev_u32",
        "v_addc_co_u32": "v_add_co_ci_u32", "v_subb_co_u32": "v_sub_co_ci_u32",
        "v_subbrev_co_u32": "v_subrev_co_ci_u32"}
CONDITIONS = {"scc0": "!w->scc", "scc1": "w->scc", "execz": "mask(w, EXEC) == 0",
              "execnz": "mask(w, EXEC) != 0", "vccz": "mask(w, VCC) == 0",
              "vccnz": "mask(w, VCC) != 0"}
MEMORY_BYTES = {"ubyte": 1, "byte": 1, "ushort": 2, "short": 2, "dword": 4, "dwordx2": 8,
                "dwordx3": 12, "dwordx4": 16}
PARTS = {"DWORD": None, "WORD_0": (0, 0xFFFF), "WORD_1": (16, 0xFFFF), "BYTE_0": (0, 0xFF),
         "BYTE_1": (8, 0xFF), "BYTE_2": (16, 0xFF), "BYTE_3": (24, 0xFF)}


# --- operands -------------------------------------------------------------------------------------


def bits_of_types(name):
    """(bits of the result, bits of each source) by the types in an instruction's name."""
    kinds = [int(k) for k in re.findall(r"_(?:[bufi])(16|24|32|64)(?=_|$)", name)]
    if name in ("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32", "v_mul_u32_u24", "v_mad_u32_u24",
                "v_mad_i32_i24", "v_mul_i32_i24", "v_mul_hi_i32_i24"):
        return 32, (32, 32, 32)
    if name == "v_mad_u64_u32":
        return 64, (32, 32, 64)
    if name in ("v_lshlrev_b64", "v_lshrrev_b64"):
        return 64, (32, 64)
    if name in ("v_ldexp_f64", "v_cmp_class_f64", "v_cmpx_class_f64"):
        return 64, (64, 32)
    if name in ("s_lshl_b64", "s_lshr_b64"):
        return 64, (64, 32)
    if name == "v_cvt_f32_ubyte0":
        return 32, (32,)
    if name.startswith("v_pk_"):
        return 64, (64, 64, 64)
    if len(kinds) == 2 and name.startswith("v_cvt_"):
        return kinds[0], (kinds[1],)
    if len(kinds) != 1:
        raise Unknown("types of " + name)
    return max(32, kinds[0]), (max(32, kinds[0]),) * 3


def span(text):
    """(file, first register, count) of v7, s[2:3], vcc_lo, …; None: no register."""
    found = re.fullmatch(r"([sv])(?:(\d+)|\[(\d+):(\d+)\])", text)
    if found:
        first, last = int(found[2] or found[3]), int(found[2] or found[4])
        if first > (255 if found[1] == "v" else 105):
            raise Unknown("register " + text)
        return found[1], first, last - first + 1
    if text in NAMED:
        return "s", NAMED[text], 1
    if text in PAIRS:
        return "s", PAIRS[text], 2
    return None


def registers(text, file, bits):
    found = span(text)
    if found is None or found[0] != file or found[2] != bits // 32:
        raise Unknown("%d bits of a register of %s: %s" % (bits, file, text))
    return found[1]


def constant(text, bits, is_float, extends_by_zero=False):
    if re.fullmatch(r"-?\d+", text):
        return int(text) & ((1 << bits) - 1)
    if re.fullmatch(r"0x[0-9a-f]+", text):
        value = int(text, 16)
        if bits == 64 and is_float:
            return value << 32  # a literal is the high half
        if value >> 32 or (bits == 64 and value >> 31 and not extends_by_zero):
            raise Unknown("constant " + text)
        return value
    if text.lstrip("-") in FLOATS:
        low, high = FLOATS[text.lstrip("-")]
        value = high << 52 if bits == 64 and is_float else low
        return value | (1 << (bits - 1) if text.startswith("-") else 0)
    raise Unknown("operand " + text)


def scalar(text, bits):
    """A source of a scalar instruction. Those of 64 bits are masks, to which a literal of 32 is extended by zeros."""
    found = span(text)
    if found is None:
        return "0x%x%s" % (constant(text, bits, False, True), "ull" if bits == 64 else "u")
    first = registers(text, "s", bits)
    return "s64(w, %d)" % first if bits == 64 else "w->s[%d]" % first


def vector(text, bits, is_float, spare, part=None):
    """A source of a vector instruction, as a pointer to its lanes."""
    extended = re.fullmatch(r"sext\((.*)\)", text)  # SDWA: the part is a signed number
    text = extended[1] if extended else text
    sign = re.fullmatch(r"(-?)(\|?)((?:[sv]|vcc|exec|m0).*?)(\|?)", text)
    negative, absolute = bool(sign and sign[1]), bool(sign and sign[2])
    text = sign[3] if sign else text
    found = span(text)
    if found is not None and found[0] == "v":
        code = "w->v[%d]" % registers(text, "v", bits)
    elif found is not None:
        code = "all(w, %d, %s)" % (spare, scalar(text, bits))
    else:
        code = "all(w, %d, 0x%xull)" % (spare, constant(text, bits, is_float))
    if part is not None:
        shift, mask = part
        code = "part_of(w, %d, %s, %d, 0x%x, 0x%x)" % (
            spare, code, shift, mask, mask + 1 >> 1 if extended else 0)
    if negative or absolute:
        code = "sign_of(w, %d, %s, %d, 0x%xu, 0x%xu)" % (
            spare, code, bits // 64, 0x7FFFFFFF if absolute else 0xFFFFFFFF,
            0x80000000 if negative else 0)
    return code


# --- instructions ---------------------------------------------------------------------------------


class Instruction:
    """One line: its name without the encoding, its operands and its modifiers. A store that is
    waited for at once is a volatile one: the kernels' flags, which blocks may store together."""

    is_volatile = False

    FORM = re.compile(r"\t(\S+) ?(.*?)\s*// ([0-9A-F]+): ((?:[0-9A-F]{8} ?)+)"
                      r"(?:<(\w+)\+0x([0-9a-f]+)>)?")

    def __init__(self, line):
        found = self.FORM.match(line)
        if found is None:
            raise Unknown("line: " + line)
        self.line = line.split("//")[0].strip()
        self.address, self.bytes = int(found[3], 16), len(found[4].split()) * 4
        self.target = (found[5], int(found[6], 16)) if found[5] else None
        name, self.encoding = re.fullmatch(r"(\w+?)(_e32|_e64|_sdwa)?", found[1]).groups()
        self.name = SAME.get(name, name)
        words = found[2].strip()
        self.modifiers = dict(re.findall(r" (\w+):(\[[\d,]+\]|-?\w+)", words))
        words = re.sub(r" \w+:(\[[\d,]+\]|-?\w+)", "", words)
        for flag in (" slc", " glc", " dlc"):  # how long a cache keeps it
            words = words.replace(flag, "")
        if words.endswith(" clamp") and self.name == "v_sub_u32":
            words, self.name = words[:-len(" clamp")], "v_sub_u32_clamp"
        self.operands = [o.strip() for o in words.split(",")] if words else []

    def modifier(self, name, default=None):
        return self.modifiers.pop(name, default)

    def number(self, name):
        return int(self.modifier(name, "0"), 0)

    def parts(self):
        """The part of each source (SDWA)."""
        if self.encoding != "_sdwa":
            return [None] * 3
        return [PARTS[self.modifier("src%d_sel" % i, "DWORD")] for i in range(3)]

    def part_written(self):
        """The part of the result's register that an instruction (SDWA) writes: the rest becomes 0."""
        part = PARTS[self.modifier("dst_sel", "DWORD")]
        if self.modifier("dst_unused", "UNUSED_PAD") != "UNUSED_PAD":
            raise Unknown("dst_unused")
        return part

    def choice(self, name, default, count):
        """op_sel and op_sel_hi as bits."""
        text = self.modifier(name)
        values = [int(v) for v in text.strip("[]").split(",")] if text else [default] * count
        return sum(v << i for i, v in enumerate(values))


class Kernel:
    def __init__(self, name, object_, descriptor, lines):
        self.name, self.object = name, object_
        self.mask_bits = object_.lanes
        self.instructions = [Instruction(line) for line in lines]
        for store, wait in zip(self.instructions, self.instructions[1:]):
            store.is_volatile = wait.name == "s_waitcnt_vscnt" or (
                wait.operands == ["vmcnt(0)"] and object_.target == "gfx90a")
        self.addresses = {i.address for i in self.instructions}
        self.start = self.instructions[0].address
        self.descriptor(descriptor)

    def descriptor(self, at):
        """What the hardware sets before the first instruction, as 64 bytes tell it."""
        image = self.object.image
        self.lds, private, self.kernarg = struct.unpack_from("<III", image, at)
        _, rsrc1, rsrc2, properties = struct.unpack_from("<IIIH", image, at + 44)
        if private or rsrc2 & 1:
            raise Unknown("scratch memory")
        if rsrc1 >> 12 & 15 or rsrc1 >> 16 & 15 != 15 or not rsrc1 >> 23 & 1:
            raise Unknown("mode of floats: rsrc1 0x%x" % rsrc1)
        if properties & ~0x409 or not properties & 8 or rsrc2 >> 11 & 3 or rsrc2 >> 8 & 7:
            raise Unknown("initial registers: 0x%x, 0x%x" % (properties, rsrc2))
        self.kernarg_register = 4 if properties & 1 else 0
        self.block_register = rsrc2 >> 1 & 31 if rsrc2 >> 7 & 1 else None

    # --- one kind of instruction each ---

    def mask_operand(self, text):
        return NOWHERE if text == "null" else registers(text, "s", self.mask_bits)

    def branch(self, i):
        if i.target is None or i.target[0] != self.name or \
                self.start + i.target[1] not in self.addresses:
            raise Unknown("target of a branch")
        jump = "goto at_%x;" % (self.start + i.target[1])
        condition = i.name.removeprefix("s_cbranch_")
        return jump if i.name == "s_branch" else "if (%s) %s" % (CONDITIONS[condition], jump)

    @staticmethod
    def wait(i):
        text = " ".join(i.operands)
        if re.fullmatch(r"vmcnt\(63\) expcnt\(7\) lgkmcnt\((15|63)\)", text):
            return ""  # each counter's most: no wait
        left = dict(re.findall(r"(\w+)\((\d+)\)", text))
        if set(left) - {"vmcnt", "lgkmcnt"} or re.sub(r"\w+\(\d+\)|[ &]", "", text):
            raise Unknown("wait")
        return "s_waitcnt(w, %s, %s);" % (left.get("vmcnt", "QUEUE"), left.get("lgkmcnt", "QUEUE"))

    @staticmethod
    def scalar_load(i):
        words = int(re.fullmatch(r"s_load_dword(?:x(\d+))?", i.name)[1] or 1)
        to, base, offset = i.operands
        offset = "0" if offset == "null" else "0x%x" % int(offset, 0)
        return "s_load(w, %d, %s, %s, %d);" % (
            registers(to, "s", words * 32), scalar(base, 64), offset, words)

    def scalar_operation(self, i):
        if i.name.endswith(("_saveexec_b32", "_saveexec_b64")):
            name = i.name.rpartition("_")[0]
            to, source = (self.mask_operand(o) for o in i.operands)
            return "%s(w, %d, mask(w, %d));" % (name, to, source)
        if i.name == "s_getpc_b64":
            return "put_s64(w, %d, (uintptr_t)gcn_image + 0x%xu);" % (
                registers(i.operands[0], "s", 64), i.address + i.bytes)
        if i.name in ("s_movk_i32", "s_addk_i32", "s_mulk_i32"):
            to, value = registers(i.operands[0], "s", 32), int(i.operands[1], 0)
            value = (value & 0x7FFF) - (value & 0x8000) & 0xFFFFFFFF
            if i.name == "s_movk_i32":
                return "w->s[%d] = 0x%xu;" % (to, value)
            return "w->s[%d] = %s(w, w->s[%d], 0x%xu);" % (
                to, i.name.replace("k_", "_"), to, value)
        if i.name in ("s_bitset0_b32", "s_bitset1_b32"):
            to, change = registers(i.operands[0], "s", 32), "&= ~" if i.name == "s_bitset0_b32" else "|= "
            return "w->s[%d] %s(1u << (%s & 31));" % (to, change, scalar(i.operands[1], 32))
        bits, sources = bits_of_types(i.name)
        name, operands = i.name.replace("cmpk", "cmp"), i.operands
        if name != i.name:  # compares with a constant of 16 bits
            value = int(operands[1], 0) & 0xFFFF
            operands = [operands[0], "0x%x" % (value | 0xFFFF0000 if value >> 15 and name.endswith("_i32") else value)]
        compares = name.startswith(("s_cmp_", "s_bitcmp"))
        values = [scalar(o, b) for o, b in zip(operands[0 if compares else 1:], sources)]
        call = "%s(w, %s)" % (name, ", ".join(values))
        if compares:
            return call + ";"
        if i.name in ("s_mov_b32", "s_mov_b64"):
            call, = values
        to = registers(i.operands[0], "s", bits)
        return "put_s64(w, %d, %s);" % (to, call) if bits == 64 else "w->s[%d] = %s;" % (to, call)

    @staticmethod
    def compare_and_swap(i):
        """global_atomic_cmpswap: what was there, the address, the new value and the expected one."""
        to, lane, values, off = i.operands
        if off != "off":
            raise ValueError(i.name)
        return "global_cmpswap(w, w->v[%d], w->v[%d], w->v[%d], %d);" % (
            registers(to, "v", 32), registers(lane, "v", 64), registers(values, "v", 64),
            i.number("offset"))

    def global_memory(self, i):
        if i.name == "global_atomic_cmpswap":
            return self.compare_and_swap(i)
        _, kind, size, *upper = i.name.split("_")  # upper: d16, hi
        size = MEMORY_BYTES[size]
        register_bits = max(32, size * 8)
        value, lane = i.operands[:2] if kind == "load" else (i.operands[1], i.operands[0])
        has_base = i.operands[2] != "off"
        base = scalar(i.operands[2], 64) if has_base else "0"
        source = "%s(w->v[%d])" % ("upper_halves" if kind == "store" and upper else "",
                                   registers(value, "v", register_bits))
        if (kind, upper) not in ((kind, []), ("store", ["d16", "hi"]), ("load", ["d16"])):
            raise ValueError(i.name)
        arguments = "w, %s, w->v[%d], %d, %s, %d, %d" % (
            source, registers(lane, "v", 32 if has_base else 64),
            int(has_base), base, i.number("offset"), size)
        return "global_load(%s, 0x%xu);" % (arguments, 0xFFFF0000 if upper else 0) if kind == "load" else \
            "global_store(%s, %d);" % (arguments, int(i.is_volatile))

    def shared_memory(self, i):
        if i.name == "ds_bpermute_b32":
            return "ds_bpermute_b32(w, %s);" % ", ".join(
                "w->v[%d]" % registers(o, "v", 32) for o in i.operands)
        kind, two, stride, bits = re.fullmatch(
            r"ds_(read|write)(2)?(st64)?_[bu](\d+)", i.name).groups()
        size = int(bits) // 8
        step = size * (64 if stride else 1)
        offsets = [i.number(o) * step for o in ("offset0", "offset1")] if two else \
            [i.number("offset")]
        register_bits = max(32, size * 8)
        if kind == "read":
            return "ds_read(w, w->v[%d], w->v[%d], %d, %d, %d, %d);" % (
                registers(i.operands[0], "v", register_bits * len(offsets)),
                registers(i.operands[1], "v", 32), size, len(offsets), offsets[0], offsets[-1])
        lane = registers(i.operands[0], "v", 32)
        stores = ["ds_write(w, w->v[%d], w->v[%d], %d, %d);" % (
            lane, registers(o, "v", register_bits), size, at)
            for o, at in zip(i.operands[1:], offsets, strict=True)]
        return " ".join(stores) + " count_lds_store(w);"

    def packed(self, i):
        low, high = i.choice("op_sel", 0, 3), i.choice("op_sel_hi", 1, 3)
        negative_low, negative_high = i.choice("neg_lo", 0, 3), i.choice("neg_hi", 0, 3)
        values = []
        for k, operand in enumerate(i.operands[1:]):
            plain = span(operand) is not None or i.name == "v_pk_mov_b32"
            bit = 1 << k
            if not plain and (low | high) & bit:
                raise Unknown("the upper half of a constant")
            code = vector(operand, 64, False, k) if plain else vector(operand, 32, True, k)
            if not plain or (negative_low | negative_high) & bit:
                code = "picked(w, %d, %s, %d, %d, %d, %d)" % (
                    k, code, *(int(bits & bit != 0) for bits in (low, high, negative_low, negative_high)))
                low, high = low & ~bit, high | bit
            values.append(code)
        return "%s(w, w->v[%d], %s, %d, %d);" % (
            i.name, registers(i.operands[0], "v", 64), ", ".join(values), low, high)

    def vector_operation(self, i):
        if i.name == "v_readfirstlane_b32":
            return "w->s[%d] = v_readfirstlane_b32(w, w->v[%d]);" % (
                registers(i.operands[0], "s", 32), registers(i.operands[1], "v", 32))
        if i.name in ("v_readlane_b32", "v_writelane_b32"):  # as compilers keep scalars: of a constant lane
            to, source, lane = i.operands
            kinds = ("s", "v") if i.name == "v_readlane_b32" else ("v", "s")
            places = registers(to, kinds[0], 32), registers(source, kinds[1], 32)
            put = "w->s[%d] = w->v[%d][%d];" if kinds[0] == "s" else "w->v[%d][%d] = w->s[%d];"
            return put % (places + (int(lane),) if kinds[0] == "s" else (places[0], int(lane), places[1]))
        if i.name.startswith("v_pk_"):
            return self.packed(i)
        bits, types = bits_of_types(i.name)
        is_float, parts = bool(re.search(r"_f(32|64)$", i.name)), i.parts()

        def sources(operands):
            return [vector(o, b, is_float, k, p)
                    for k, (o, b, p) in enumerate(zip(operands, types, parts))]

        name, operands, to_mask, extra = i.name, list(i.operands), None, []
        if name.startswith("v_cmpx_"):
            name, to_mask = name.replace("cmpx", "cmp"), EXEC
        elif name.startswith("v_cmp_"):
            to_mask = self.mask_operand(operands.pop(0))
        else:
            to = registers(operands.pop(0), "v", bits)
            extra = ["w->v[%d]" % to]
        if "_co_" in name or name.startswith(("v_div_scale_", "v_mad_u64_")):
            to_mask = self.mask_operand(operands.pop(0))
        carry = []
        if "_co_ci_" in name or name == "v_cndmask_b32":
            carry = ["mask(w, %d)" % self.mask_operand(operands.pop())]
        elif "_co_" in name:
            name, carry = name.replace("_co_", "_co_ci_"), ["0"]
        elif name.startswith("v_div_fmas_"):
            carry = ["mask(w, VCC)"]
        values = sources(operands)
        if name.startswith("v_fmac_"):
            name = name.replace("fmac", "fma")
            values.append(extra[0])
        elif name == "v_mac_f32":  # rounded twice
            name = "v_madmk_f32"
            values.append(extra[0])
        name = name.replace("fmaak", "fma").replace("fmamk", "fma")  # with a literal operand
        call = "%s(w, %s)" % (name, ", ".join(extra + values + carry))
        part = i.part_written()
        if part is not None:
            if to_mask is not None or bits != 32:
                raise Unknown("a part of " + i.name)
            call += "; put_part(w, w->v[%d], %d, 0x%x)" % (to, *part)
        return "put_mask(w, %d, %s);" % (to_mask, call) if to_mask is not None else call + ";"

    # --- the whole ---

    def code_of(self, i):
        if i.name in NOTHING:
            return ""
        if i.name == "s_endpgm":
            return "return;"
        if i.name == "s_barrier":
            return "s_barrier(w, 0x%x);" % i.address
        if i.name == "s_waitcnt":
            return self.wait(i)
        if i.name == "s_branch" or i.name.startswith("s_cbranch_"):
            return self.branch(i)
        for start, kind in (("s_load_", self.scalar_load), ("s_", self.scalar_operation),
                            ("global_", self.global_memory), ("ds_", self.shared_memory),
                            ("v_", self.vector_operation)):
            if i.name.startswith(start):
                return kind(i)
        raise Unknown("instruction")

    def statement(self, i):
        try:
            code = self.code_of(i)
        except (Unknown, KeyError, ValueError, TypeError) as error:
            raise Unknown("%s: %s (%s)" % (self.name, i.line, error)) from error
        if i.modifiers:
            raise Unknown("%s: %s: modifiers" % (self.name, i.line))
        return code

    def code(self, index):
        targets = {self.start + i.target[1] for i in self.instructions if i.target}
        begin = ["put_s64(w, %d, (uintptr_t)w->kernarg);" % self.kernarg_register]
        if self.block_register is not None:
            begin.append("w->s[%d] = calls->block();" % self.block_register)
        lines = ["HIDDEN void %s(const void *args, uint64_t first_item)" % self.name, "{",
                 "wave *w = enter(args, %d, first_item, %d, &translated_ran[%d]);" % (
                     self.kernarg - 8, self.lds, index), *begin]
        for i in self.instructions:
            if i.address in targets:
                lines.append("at_%x:;" % i.address)
                targets.remove(i.address)
            lines.append(self.statement(i))
        return "\n".join([line for line in lines if line] + ["}", ""])


def kernels_of(object_, text, only=None):
    descriptors = {name: int(at, 16) for at, name in re.findall(
        r"^([0-9a-f]{16}) .* (\w+)\.kd$", text, re.M)}
    kernels = []
    for piece in re.split(r"^[0-9a-f]{16} (?=<)", text, flags=re.M)[1:]:
        name = re.match(r"<(\w+)>:", piece)[1]
        if only in (None, name):
            lines = [line for line in piece.splitlines()[1:] if line.startswith("\t")]
            kernels.append(Kernel(name, object_, descriptors[name], lines))
    return kernels


def translate(object_, text=None, only=None):
    """text: a changed copy of what llvm-objdump printed. only: one kernel."""
    kernels = kernels_of(object_, object_.text if text is None else text, only)
    if not kernels:
        raise Unknown("no kernel")
    rows = ['{"%s", %d, %s},' % (k.name, k.kernarg - 8, k.name) for k in kernels]
    image = ",".join(map(str, object_.image))
    return "\n".join([
        "#define LANES %d" % object_.lanes, object_.define, '#include "numbers.h"', CALLS_ONLY,
        *in_parts(k.code(n) for n, k in enumerate(kernels)), shared("\n".join([
            *("HIDDEN void %s(const void *args, uint64_t first_item);" % k.name for k in kernels),
            "char translated_ran[%d];" % len(kernels),
            "const unsigned char gcn_image[] __attribute__((aligned(4096))) = {%s};" % image,
            "const uint64_t gcn_image_bytes = sizeof gcn_image;",
            "const mo_sim_kernel translated_kernels[] = {%s {NULL, 0, NULL}};" % " ".join(rows),
            "const uint64_t translated_digests[] = {0x%xull, 0};" % object_.digest()])), ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("object", type=pathlib.Path, nargs="?")
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    parser.add_argument("--tools", action="store_true")
    options = parser.parse_args()
    if options.tools:
        print("\n".join(tools()))
        sys.exit(0 if tools() else 77)
    try:
        options.out.write_text(translate(CodeObject(options.object)))
    except Unknown as error:
        sys.exit("translate.py: %s: not known: %s" % (options.object, error))


if __name__ == "__main__":
    main()
