/* CRC32C (Castagnoli, reflected polynomial 0x82F63B78): hardware where the processor has SSE 4.2, else slicing by eight.
 *
 * The crc32 instruction has a latency of three cycles and a throughput of one a cycle, so a single chain of them leaves
 * two thirds of the unit idle. Long inputs are therefore cut into three lanes computed side by side; the lanes are joined
 * by advancing a checksum over the length of the next lane, which is one multiplication modulo the polynomial done
 * through four tables (CRC is linear, so advancing over zero bytes is a linear map of 32 bits).
 */
#ifndef TAILRACE_CRC32C_H
#define TAILRACE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TR_POLYNOMIAL 0x82F63B78u
#define TR_LANE_LONG 4096
#define TR_LANE_SHORT 256

static uint32_t tr_slices[8][256];
static uint32_t tr_advance_long[4][256];
static uint32_t tr_advance_short[4][256];
static int tr_has_sse42 = 0;

/* Product of two polynomials modulo the CRC polynomial; bit 31 is the coefficient of x^0. */
static uint32_t tr_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int i = 0; i < 32; i++) {
        if (a & 0x80000000u) product ^= b;
        a <<= 1;
        b = (b & 1u) ? (b >> 1) ^ TR_POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^(8 * length) modulo the polynomial: what a checksum is multiplied by to pass over `length` zero bytes. */
static uint32_t tr_power_of_bytes(uint64_t length) {
    uint32_t result = 0x80000000u; /* x^0 */
    uint32_t square = 0x00800000u; /* x^8 */
    while (length) {
        if (length & 1u) result = tr_multiply(result, square);
        square = tr_multiply(square, square);
        length >>= 1;
    }
    return result;
}

static void tr_fill_advance(uint32_t table[4][256], uint64_t length) {
    uint32_t power = tr_power_of_bytes(length);
    for (uint32_t place = 0; place < 4; place++)
        for (uint32_t byte = 0; byte < 256; byte++) table[place][byte] = tr_multiply(power, byte << (8 * place));
}

static void tr_crc32c_initialise(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc & 1u) ? (crc >> 1) ^ TR_POLYNOMIAL : crc >> 1;
        tr_slices[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int slice = 1; slice < 8; slice++) {
            uint32_t crc = tr_slices[slice - 1][byte];
            tr_slices[slice][byte] = (crc >> 8) ^ tr_slices[0][crc & 0xFFu];
        }
    tr_fill_advance(tr_advance_long, TR_LANE_LONG);
    tr_fill_advance(tr_advance_short, TR_LANE_SHORT);
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    tr_has_sse42 = __builtin_cpu_supports("sse4.2") ? 1 : 0;
#endif
}

static uint32_t tr_crc32c_table(uint32_t crc, const unsigned char *data, size_t length) {
    crc = ~crc;
    while (length >= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = tr_slices[7][low & 0xFFu] ^ tr_slices[6][(low >> 8) & 0xFFu] ^ tr_slices[5][(low >> 16) & 0xFFu] ^
              tr_slices[4][low >> 24] ^ tr_slices[3][data[4]] ^ tr_slices[2][data[5]] ^ tr_slices[1][data[6]] ^
              tr_slices[0][data[7]];
        data += 8;
        length -= 8;
    }
    while (length--) crc = (crc >> 8) ^ tr_slices[0][(crc ^ *data++) & 0xFFu];
    return ~crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
static inline uint32_t tr_advance(uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xFFu] ^ table[1][(crc >> 8) & 0xFFu] ^ table[2][(crc >> 16) & 0xFFu] ^ table[3][crc >> 24];
}

static inline uint64_t tr_load64(const unsigned char *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

__attribute__((target("sse4.2"))) static uint32_t tr_three_lanes(uint32_t crc, const unsigned char *data, size_t lane,
                                                                 uint32_t table[4][256]) {
    uint64_t first = crc, second = 0, third = 0;
    for (size_t i = 0; i < lane; i += 8) {
        first = __builtin_ia32_crc32di(first, tr_load64(data + i));
        second = __builtin_ia32_crc32di(second, tr_load64(data + lane + i));
        third = __builtin_ia32_crc32di(third, tr_load64(data + 2 * lane + i));
    }
    uint32_t joined = tr_advance(table, (uint32_t)first) ^ (uint32_t)second;
    return tr_advance(table, joined) ^ (uint32_t)third;
}

__attribute__((target("sse4.2"))) static uint32_t tr_crc32c_sse42(uint32_t crc, const unsigned char *data, size_t length) {
    crc = ~crc;
    while (length >= 3 * TR_LANE_LONG) {
        crc = tr_three_lanes(crc, data, TR_LANE_LONG, tr_advance_long);
        data += 3 * TR_LANE_LONG;
        length -= 3 * TR_LANE_LONG;
    }
    while (length >= 3 * TR_LANE_SHORT) {
        crc = tr_three_lanes(crc, data, TR_LANE_SHORT, tr_advance_short);
        data += 3 * TR_LANE_SHORT;
        length -= 3 * TR_LANE_SHORT;
    }
    uint64_t wide = crc;
    while (length >= 8) {
        wide = __builtin_ia32_crc32di(wide, tr_load64(data));
        data += 8;
        length -= 8;
    }
    crc = (uint32_t)wide;
    while (length--) crc = __builtin_ia32_crc32qi(crc, *data++);
    return ~crc;
}
#endif

static uint32_t tr_crc32c(uint32_t crc, const unsigned char *data, size_t length) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (tr_has_sse42) return tr_crc32c_sse42(crc, data, length);
#endif
    return tr_crc32c_table(crc, data, length);
}

/* Checksum of two parts joined, from the checksum of each and the length of the second. */
static uint32_t tr_crc32c_combine(uint32_t first, uint32_t second, uint64_t second_length) {
    return tr_multiply(tr_power_of_bytes(second_length), first) ^ second;
}

static int tr_is_zero(const unsigned char *data, size_t length) {
    size_t head = length < 16 ? length : 16;
    for (size_t i = 0; i < head; i++)
        if (data[i]) return 0;
    /* The first sixteen bytes are zero: the rest is zero exactly when it equals itself moved by sixteen. */
    return length <= 16 || memcmp(data, data + 16, length - 16) == 0;
}

#endif
