/* Decoding x86-64 instructions: where their parts are, and what run_ahead.c has to do for them (x86_instruction.h). */
#include "x86_instruction.h"

/* A row for each opcode of a map: the bytes that follow, and the kind of the instruction. */
enum { M = 1, I8 = 2, IZ = 4, BYTE = 8, BAD = 16 }; /* ModRM; immediates; 8-bit operands; not known */

/* clang-format off */
static const u8 ONE_BYTE[256] = {
#define ALU M | BYTE, M, M | BYTE, M, I8 | BYTE, IZ, BAD, BAD
    ALU, ALU, ALU, ALU, ALU, ALU, ALU, ALU,
    /* 40: REX; a second one would be part of what comes next */ BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD,
    BAD, BAD,
    /* 50: push, pop */ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    /* 60 */ BAD, BAD, BAD, M, BAD, BAD, BAD, BAD, IZ, M | IZ, I8, M | I8, BAD, BAD, BAD, BAD,
    /* 70: jcc */ I8, I8, I8, I8, I8, I8, I8, I8, I8, I8, I8, I8, I8, I8, I8, I8,
    /* 80 */ M | I8 | BYTE, M | IZ, BAD, M | I8, M | BYTE, M, M | BYTE, M, M | BYTE, M, M | BYTE, M, BAD, M, BAD, M,
    /* 90 */ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, BAD, 0, 0, 0, 0, 0,
    /* A0 */ BAD, BAD, BAD, BAD, BYTE, 0, BYTE, 0, I8 | BYTE, IZ, BYTE, 0, BYTE, 0, BYTE, 0,
    /* B0 */ I8 | BYTE, I8 | BYTE, I8 | BYTE, I8 | BYTE, I8 | BYTE, I8 | BYTE, I8 | BYTE, I8 | BYTE, IZ, IZ, IZ, IZ, IZ, IZ, IZ, IZ,
    /* C0 */ M | I8 | BYTE, M | I8, 0, 0, BAD, BAD, M | I8 | BYTE, M | IZ, BAD, 0, BAD, BAD, BAD, BAD, BAD, BAD,
    /* D0 */ M | BYTE, M, M | BYTE, M, BAD, BAD, BAD, BAD, M, M, M, M, M, M, M, M,
    /* E0 */ I8, I8, I8, I8, BAD, BAD, BAD, BAD, IZ, IZ, BAD, I8, BAD, BAD, BAD, BAD,
    /* F0 */ BAD, BAD, BAD, BAD, BAD, 0, M | BYTE, M, 0, 0, BAD, BAD, 0, 0, M | BYTE, M,
};
/* clang-format on */

/* clang-format off */
static const u8 TWO_BYTES[256] = {
#define EIGHT(x) x, x, x, x, x, x, x, x
    /* 00 */ BAD, M, BAD, BAD, BAD, 0, BAD, BAD, BAD, BAD, BAD, BAD, BAD, M, BAD, BAD,
    /* 10 */ EIGHT(M), EIGHT(M),
    /* 20 */ EIGHT(BAD), EIGHT(M),
    /* 30 */ EIGHT(BAD), EIGHT(BAD),
    /* 40 */ EIGHT(M), EIGHT(M),
    /* 50 */ EIGHT(M), EIGHT(M),
    /* 60 */ EIGHT(M), EIGHT(M),
    /* 70 */ M | I8, M | I8, M | I8, M | I8, M, M, M, 0, BAD, BAD, BAD, BAD, M, M, M, M,
    /* 80 */ EIGHT(IZ), EIGHT(IZ),
    /* 90 */ EIGHT(M | BYTE), EIGHT(M | BYTE),
    /* A0 */ BAD, BAD, BAD, M, M | I8, M, BAD, BAD, BAD, BAD, BAD, M, M | I8, M, M, M,
    /* B0 */ M | BYTE, M, BAD, M, BAD, BAD, M, M, M, BAD, M | I8, M, M, M, M, M,
    /* C0 */ M | BYTE, M, M | I8, M, M | I8, M | I8, M | I8, M, EIGHT(0),
    /* D0 */ EIGHT(M), EIGHT(M),
    /* E0 */ EIGHT(M), EIGHT(M),
    /* F0 */ EIGHT(M), M, M, M, M, M, M, M, BAD,
};
/* clang-format on */

enum {
    OPERAND_SIZE = 0x66,
    ADDRESS_SIZE = 0x67,
    FS = 0x64,
    GS = 0x65,
    LOCK = 0xF0,
    REX_W = 8,
    REX_R = 4,
    REX_X = 2,
    REX_B = 1
};

static int is_prefix(u8 byte)
{ return (byte & 0xE7) == 0x26 || (byte & 0xFC) == 0x64 || byte == LOCK || byte == REPNE || byte == REP; }

/* ModRM, SIB and displacement; where they end, or 0. */
static int operand(struct instruction *f, const u8 *code, int at, int have, u8 rex)
{
    if (at >= have) return 0;
    u8 modrm = code[at], mod = modrm >> 6, rm = modrm & 7;
    f->modrm = (u8)at++;
    f->reg = (u8)((modrm >> 3 & 7) | (rex & REX_R ? 8 : 0));
    if (mod == 3) {
        f->rm = (u8)(rm | (rex & REX_B ? 8 : 0));
        return at;
    }
    f->memory = 1;
    f->base = (u8)(rm | (rex & REX_B ? 8 : 0));
    if (rm == 4) {
        if (at >= have) return 0;
        u8 sib = code[at++];
        f->base = (u8)((sib & 7) | (rex & REX_B ? 8 : 0));
        f->index = (u8)((sib >> 3 & 7) | (rex & REX_X ? 8 : 0));
        f->shift = sib >> 6;
        if (f->index == RSP) f->index = NO_REGISTER;
        rm = sib & 7;
        if (rm == 5 && mod == 0) f->base = NO_REGISTER;
    } else if (rm == 5 && mod == 0) f->base = NO_REGISTER, f->scaled = 2; /* relative, for now */
    int bytes = mod == 1 ? 1 : mod == 2 || f->base == NO_REGISTER ? 4 : 0;
    if (at + bytes > have) return 0;
    if (bytes == 1) f->displacement = (u64)(i64)(int8_t)code[at];
    if (bytes == 4) f->displacement = (u64)(i64)(i32)get32(code + at);
    return at + bytes;
}

/* The kind of a legacy instruction of the second map, except SSE and MMX: `vector` has these. */
static void of_second_map(struct instruction *f, u8 mandatory, u8 rex)
{
    u8 reg = f->reg & 7;
    f->what = EXECUTED;
    /* clang-format off */
    switch (f->opcode) {
    case 0x05: f->what = SYSTEM_CALL; return;
    case 0x01: f->what = !f->memory && reg == 2 && f->rm == 6 ? EXECUTED : UNSUPPORTED; return; /* XTEST: in no transaction */
    case 0x0D: f->what = f->memory ? NOTHING_TO_DO : UNSUPPORTED; return;
    case 0x77: f->state = X87_STATE; return; /* EMMS */
    case 0xA3: case 0xAB: case 0xB3: case 0xBB:
        if (f->memory) f->what = BIT_STRING;
        return;
    case 0xAE:
        if (!f->memory) {
            f->what = mandatory == 0xF3 && reg < 2 ? READ_BASE : !mandatory && reg >= 5 ? NOTHING_TO_DO : UNSUPPORTED;
            return;
        }
        f->what = reg == 0 || reg == 4 || reg == 6 ? SAVE_STATE : reg == 1 || reg == 5 ? RESTORE_STATE
                : reg == 2 ? LOAD_CONTROL : reg == 3 ? STORE_CONTROL : NOTHING_TO_DO;
        if (mandatory) f->what = mandatory == 0x66 && reg >= 6 ? NOTHING_TO_DO : UNSUPPORTED; /* CLWB, CLFLUSHOPT; CLRSSBSY, PTWRITE */
        return;
    case 0xB6: case 0xBE: f->size = 1; return;
    case 0xB7: case 0xBF: f->size = 2; return;
    case 0xB8: if (mandatory != 0xF3) f->what = UNSUPPORTED; return;
    case 0xC7:
        if (f->memory && reg == 1) f->size = rex & REX_W ? 16 : 8;
        else f->what = f->memory && reg == 4 && !mandatory ? SAVE_STATE : UNSUPPORTED;
        return;
    }
    /* clang-format on */
    if (f->opcode >= 0x18 && f->opcode <= 0x1F) {
        int shadow = f->opcode == 0x1E && mandatory == 0xF3 && !f->memory && reg == 1; /* RDSSP */
        f->what = shadow ? READ_SHADOW_STACK : NOTHING_TO_DO;
    }
    if ((f->opcode & 0xF0) == 0x80) f->what = CONDITION;
}

static int is_vector(u8 opcode)
{
    return (opcode >= 0x10 && opcode < 0x18) || (opcode >= 0x28 && opcode < 0x30) || (opcode >= 0x50 && opcode < 0x80)
        || opcode == 0xC2 || (opcode >= 0xC4 && opcode <= 0xC6) || opcode >= 0xD0;
}

/* Stores of vectors in the second map, whatever their mandatory prefix. */
static int stores_vector(u8 opcode, u8 mandatory)
{
    /* clang-format off */
    switch (opcode) {
    case 0x11: case 0x13: case 0x17: case 0x29: case 0x2B: case 0x7F: case 0xD6: case 0xE7: return 1;
    case 0x7E: return mandatory != 0xF3;
    }
    /* clang-format on */
    return 0;
}

static void of_first_map(struct instruction *f, u8 mandatory, u8 rex)
{
    u8 op = f->opcode, reg = f->reg & 7;
    f->what = EXECUTED;
    if (op >= 0x70 && op < 0x80) f->what = CONDITION;
    else if (op >= 0xD8 && op < 0xE0) {
        f->state = X87_STATE;
        f->size = 16;
        if (f->memory && op == 0xD9 && reg == 4) f->size = 28; /* FLDENV */
        int tells_address =
            op == 0xD9 && reg == 6; /* FNSTENV: where the last x87 instruction was, here and not in the thread */
        if (f->memory && (tells_address || (op == 0xDD && (reg == 4 || reg == 6))))
            f->what = UNSUPPORTED; /* FRSTOR, FNSAVE */
        if (f->memory && op == 0xD9 && (reg == 5 || reg == 7)) f->size = 2;
    } else if (op >= 0x50 && op < 0x60) {
        f->what = op < 0x58 ? PUSH : POP;
        f->rm = (u8)((op & 7) | (rex & REX_B ? 8 : 0));
    } else {
        /* clang-format off */
        switch (op) {
        case 0x63: f->size = 4; break;
        case 0x68: case 0x6A: f->what = PUSH; f->rm = NO_REGISTER; break;
        case 0x88: case 0x8A: /* AH and its like are not the register of their number */
            if (f->has_rex || (reg < 4 && (f->memory || f->rm < 4))) f->what = MOVE;
            f->only_writes = op == 0x88;
            break;
        case 0x89: case 0x8B: f->what = MOVE; break;
        case 0x8D: f->what = f->memory ? LOAD_ADDRESS : UNSUPPORTED; break;
        case 0x8F: f->what = reg == 0 ? POP : UNSUPPORTED; break;
        case 0x90: f->what = rex & REX_B ? EXECUTED : NOTHING_TO_DO; break;
        case 0x9B: f->state = X87_STATE; break;
        case 0x9C: f->what = PUSH_FLAGS; break;
        case 0x9D: f->what = POP_FLAGS; break;
        case MOVS: case MOVS + 1: case CMPS: case CMPS + 1: case STOS: case STOS + 1: case LODS: case LODS + 1: case SCAS: case SCAS + 1:
            f->what = STRING;
            f->repeats = mandatory == REPNE || mandatory == REP ? mandatory : 0;
            break;
        case 0xC2: case 0xC3: f->what = RETURN; break;
        case 0xC6: case 0xC7: f->what = reg == 0 ? EXECUTED : UNSUPPORTED; f->only_writes = 1; break;
        case 0xC9: f->what = LEAVE_FRAME; break;
        case 0xE0: case 0xE1: case 0xE2: case 0xE3: f->what = COUNT; break;
        case 0xE8: f->what = CALL; break;
        case 0xE9: case 0xEB: f->what = JUMP; break;
        case 0xFC: case 0xFD: f->what = DIRECTION; break;
        case 0xFE: if (reg > 1) f->what = UNSUPPORTED; break;
        case 0xFF: {
            static const u8 group[8] = {EXECUTED, EXECUTED, CALL_TO, UNSUPPORTED, JUMP_TO, UNSUPPORTED, PUSH, UNSUPPORTED};
            f->what = group[reg];
            break;
        }
        }
        /* clang-format on */
    }
    if (f->what >= PUSH && f->what <= LEAVE_FRAME && f->size == 2) f->what = UNSUPPORTED; /* of 2 bytes on the stack */
}

int x86_decode(struct instruction *f, const u8 *code, int have, u64 address)
{
    if (have > LONGEST_INSTRUCTION) have = LONGEST_INSTRUCTION;
    *f = (struct instruction){
        .length = 1, .rm = NO_REGISTER, .other = NO_REGISTER, .base = NO_REGISTER, .index = NO_REGISTER};
    int at = 0, size_16 = 0, locked = 0;
    u8 repeat = 0, rex = 0, form = 0;
    for (; at < have && is_prefix(code[at]); at++) {
        u8 byte = code[at];
        if (byte == OPERAND_SIZE) size_16 = 1;
        else if (byte == ADDRESS_SIZE) f->address_32 = 1;
        else if (byte == FS || byte == GS) f->segment = byte == FS ? 1 : 2;
        else if (byte == REPNE || byte == REP) repeat = byte;
        else locked |= byte == LOCK;
    }
    f->prefixes = (u8)at;
    if (at < have && (code[at] & 0xF0) == 0x40) rex = code[at++], f->has_rex = 1;
    if (at >= have) return 0;
    u8 mandatory = repeat ? repeat : size_16 ? OPERAND_SIZE : 0;
    f->opcodes = (u8)at;
    int map = 1, encoded = 0; /* 2: VEX of two bytes; 3: of three; 4: EVEX */
    if ((code[at] == 0xC4 || code[at] == 0xC5 || code[at] == 0x62)) {
        encoded = code[at] == 0xC5 ? 2 : code[at] == 0xC4 ? 3 : 4;
        if (at + encoded >= have) return 0;
        if (rex || size_16 || repeat || locked) return f->what = UNSUPPORTED, 1;
        u8 first = code[at + 1], last = encoded == 2 ? first : code[at + 2];
        rex = (u8)(first & 0x80 ? 0 : REX_R);
        map = 2;
        if (encoded > 2) {
            rex = (u8)(rex | (first & 0x40 ? 0 : REX_X) | (first & 0x20 ? 0 : REX_B) | (last & 0x80 ? REX_W : 0));
            map = encoded == 3 ? (first & 31) + 1 : (first & 7) + 1;
            if (encoded == 4 && (first & 8 || !(last & 4)))
                return f->what = UNSUPPORTED, 1; /* APX: registers from R16 on */
        }
        f->other = (u8)(~last >> 3 & 15);
        static const u8 implied[4] = {0, 0x66, 0xF3, 0xF2};
        mandatory = implied[last & 3];
        at += encoded;
        if (map < 2 || map > 4) return f->what = UNSUPPORTED, 1;
        form = map == 2 ? (u8)(TWO_BYTES[code[at]] & ~BYTE) : (u8)(map == 4 ? M | I8 : M);
        if (map == 2 && (code[at] < 0x10 || form & (BAD | IZ)))
            form = encoded == 4 && code[at] >> 2 == 0x78 >> 2 ? M : BAD;
        f->state = VECTOR_STATE;
        f->size = encoded == 4 ? 64 : last & 4 ? 32 : 16;
    } else if (code[at] == 0x0F) {
        if (++at >= have) return 0;
        if (code[at] == 0x38 || code[at] == 0x3A) {
            map = code[at] == 0x38 ? 3 : 4;
            if (++at >= have) return 0;
            form = map == 3 ? M : M | I8;
        } else {
            map = 2;
            form = TWO_BYTES[code[at]];
        }
    } else form = ONE_BYTE[code[at]];
    f->opcode = code[at++];
    if (form & BAD) return f->what = UNSUPPORTED, 1;
    int wide = (rex & REX_W) != 0;
    if (!encoded) f->size = form & BYTE ? 1 : wide ? 8 : size_16 ? 2 : 4;
    if (form & M) {
        if (!(at = operand(f, code, at, have, rex))) return 0;
    }
    f->after_operand = (u8)at;
    int relative = f->scaled == 2;
    f->scaled = encoded == 4 && f->memory && f->modrm && code[f->modrm] >> 6 == 1;
    int bytes = form & I8 ? 1 : form & IZ ? size_16 && !wide ? 2 : 4 : 0;
    if (map == 1) {
        u8 op = f->opcode;
        if (op >= 0xB8 && op < 0xC0 && wide) bytes = 8;
        if (op == 0xC2) bytes = 2;
        if ((op == 0xF6 || op == 0xF7) && (f->reg & 7) < 2) bytes = op == 0xF6 ? 1 : size_16 && !wide ? 2 : 4;
        if (op == 0xE8 || op == 0xE9) bytes = 4;
    } else if (map == 2 && (f->opcode & 0xF0) == 0x80 && !encoded) bytes = 4;
    if (at + bytes > have) return 0;
    u64 value = bytes == 1 ? (u64)(i64)(int8_t)code[at]
        : bytes == 2       ? get16(code + at)
        : bytes == 4       ? (u64)(i64)(i32)get32(code + at)
        : bytes == 8       ? get64(code + at)
                           : 0;
    at += bytes;
    f->length = (u8)at;
    f->immediate = value;
    if (relative) f->displacement += address + (u64)at;
    if (encoded) {
        int vector_index = map == 3
            && ((f->opcode >= 0x90 && f->opcode < 0x94)
                || (encoded == 4 && ((f->opcode & 0xFC) == 0xA0 || f->opcode == 0xC6 || f->opcode == 0xC7)));
        int tiles = encoded == 3 && map == 3
            && (f->opcode == 0x49 || f->opcode == 0x4B || f->opcode == 0x5C || f->opcode == 0x5E);
        int at_rdi = map == 2 && f->opcode == 0xF7; /* VMASKMOVDQU */
        int in_fours =
            encoded == 4 && map == 3 && mandatory == 0xF2 && f->opcode != 0x68 && f->opcode != 0x72; /* V4FMADDPS... */
        f->what = vector_index || tiles || at_rdi || in_fours ? UNSUPPORTED : EXECUTED;
        if (map == 2 && f->opcode == 0x77) f->what = encoded < 4 && !mandatory && !f->other ? ZERO_UPPER : UNSUPPORTED;
        if (map == 2 && f->opcode == 0xAE) {
            int which = f->memory && !mandatory && encoded < 4 ? f->reg & 7 : 0;
            f->what = which == 2 ? LOAD_CONTROL : which == 3 ? STORE_CONTROL : UNSUPPORTED;
        }
        f->only_writes = map == 2 && encoded < 4 && stores_vector(f->opcode, mandatory);
        return 1;
    }
    if (map == 1) of_first_map(f, mandatory, rex);
    else if (map == 2) of_second_map(f, mandatory, rex);
    else f->what = EXECUTED;
    if (f->what == EXECUTED && map > 1 && (map > 2 || is_vector(f->opcode))) {
        int general = map == 3 && (f->opcode == 0xF0 || f->opcode == 0xF1 || f->opcode == 0xF6);
        int sse = map == 2 && (f->opcode < 0x60 || f->opcode == 0xC2 || f->opcode == 0xC6);
        if (sse && (f->opcode == 0x2A || f->opcode == 0x2C || f->opcode == 0x2D) && !repeat) sse = 0; /* MMX */
        int mmx = (!mandatory && !sse)
            || (map == 2
                && ((f->opcode == 0xD6 && repeat) || ((f->opcode & 0xFC) == 0x2C && !sse)
                    || (f->opcode == 0x2A && !sse)));
        if (map == 2 && f->opcode == 0xF7) f->what = UNSUPPORTED; /* MASKMOVDQU: at RDI */
        if (map == 3 && (f->opcode >= 0xF8 || f->opcode == 0xF5)) f->what = UNSUPPORTED;
        if (map == 3 && repeat == 0xF3 && f->opcode >= 0xD8 && f->opcode <= 0xDF)
            f->what = UNSUPPORTED; /* Key Locker */
        if (map == 3 && f->opcode == 0xF6) f->size = wide ? 8 : 4; /* ADCX: 66 is part of its opcode */
        f->state = general ? GENERAL_STATE : mmx ? X87_STATE : VECTOR_STATE;
        if (!general) {
            f->size = 16;
            f->only_writes = map == 2 && stores_vector(f->opcode, mandatory);
        }
    }
    if (f->what >= CONDITION) {
        if (f->what == JUMP || f->what == CALL || f->what == CONDITION || f->what == COUNT)
            f->immediate += address + (u64)at;
        if (size_16 && !wide) f->what = UNSUPPORTED; /* processors differ */
    }
    if (locked && f->what != EXECUTED && (f->what != BIT_STRING || f->opcode == 0xA3))
        f->what = UNSUPPORTED; /* it faults */
    return 1;
}

void x86_vectors(const struct instruction *of, const u8 *code, u32 *vectors, u8 *masks)
{
    u8 first = code[of->opcodes], last = 0;
    int encoded = first == 0xC5 ? 2 : first == 0xC4 ? 3 : first == 0x62 ? 4 : 0;
    *vectors = *masks = 0;
    if (!of->modrm || (of->opcode >= 0xD8 && of->opcode < 0xE0 && of->opcodes + 1 == of->modrm)) return; /* x87 */
    u32 high = 0; /* bit 4 of reg, rm and other */
    if (encoded == 4) {
        last = code[of->opcodes + 3];
        high = (code[of->opcodes + 1] & 0x10 ? 0 : 1) | (code[of->opcodes + 1] & 0x40 ? 0 : 2) | (last & 8 ? 0 : 4);
    }
    *vectors = (u32)1 << (of->reg | (high & 1) << 4);
    if (!of->memory) *vectors |= (u32)1 << (of->rm | (high & 2) << 3);
    if (of->other != NO_REGISTER) *vectors |= (u32)1 << (of->other | (high & 4) << 2);
    int map = encoded == 2              ? 1
        : encoded                       ? code[of->opcodes + 1] & 7
        : code[of->opcodes + 1] == 0x38 ? 2
        : code[of->opcodes + 1] == 0x3A ? 3
                                        : 1;
    if (map > 1) *vectors |= 1; /* SHA256RNDS2, BLENDVPS, PCMPISTRM: XMM0 */
    if (map == 3 && encoded) *vectors |= (u32)1 << (of->immediate >> 4 & 15); /* VBLENDVPS */
    u8 op = of->opcode;
    int on_masks = encoded == 4 || (encoded && map == 1 && ((op & 0xF0) == 0x40 || (op & 0xF0) == 0x90))
        || (encoded && map == 3 && (op & 0xF0) == 0x30);
    if (!on_masks) return;
    *masks = (u8)(1 << (of->reg & 7) | 1 << ((of->reg & 7) ^ 1)); /* VP2INTERSECTD writes two */
    if (encoded == 4) *masks |= (u8)(1 << (last & 7));
    else *masks |= (u8)(1 << (of->other & 7));
    if (!of->memory) *masks |= (u8)(1 << (of->rm & 7));
}

int x86_loads_stack(const struct instruction *i)
{
    if (i->state || i->opcodes != i->prefixes + i->has_rex) return 0;
    switch (i->opcode) {
    case 0x89: return i->rm == RSP && i->reg != RBP;
    case 0x8B: return i->reg == RSP && i->rm != RBP;
    case 0x87: return i->reg == RSP || i->rm == RSP;
    }
    return 0;
}

int x86_at_register(const struct instruction *of, const u8 *code, int scratch, u8 *out)
{
    int n = 0;
    for (int i = 0; i < of->prefixes; i++)
        if (code[i] == OPERAND_SIZE || code[i] == LOCK || code[i] == REPNE || code[i] == REP) out[n++] = code[i];
    int opcodes = of->opcodes;
    if (of->has_rex) out[n++] = (u8)(code[of->prefixes] & ~(REX_X | REX_B));
    for (int i = opcodes; i < of->modrm; i++) {
        u8 byte = code[i];
        if (i == opcodes + 1 && (code[opcodes] == 0xC4 || code[opcodes] == 0x62)) byte |= 0x60;
        out[n++] = byte;
    }
    out[n++] = (u8)((code[of->modrm] & 0x38) | scratch);
    for (int i = of->after_operand; i < of->length; i++) out[n++] = code[i];
    return n;
}

int x86_at_displacement(const struct instruction *of, const u8 *code, int scratch, u8 *out)
{
    int n = x86_at_register(of, code, scratch, out), rest = of->length - of->after_operand;
    memmove(out + n - rest + 1, out + n - rest, (size_t)rest);
    out[n - rest - 1] |= 0x40;
    out[n - rest] = (u8)of->displacement;
    return n + 1;
}
