// The instructions of AMX that the kernel uses, in plain C++, so that its code in tiles runs on other processors.
//
// Sums are made in the order of Intel's manual: those of the even and of the odd steps of the depth apart, each from 0,
// and then both added to the tile. Numbers below the normal range are not flushed to 0. A tile that is used outside of
// a configuration ends the program, as it does there.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace RV_NAMESPACE {

struct EmulatedTile {
    alignas(64) float rows[16][16];
};

struct EmulatedTiles {
    bool configured = false;
    EmulatedTile tile[8];

    EmulatedTile &at(int number) {
        if (!configured) {
            std::fprintf(stderr, "a tile was used without a configuration\n");
            std::abort();
        }
        return tile[number];
    }
};

inline thread_local EmulatedTiles emulated;

inline void emulated_loadconfig(const uint8_t *configuration) {
    for (int i = 0; i < 8; i++)
        if (configuration[0] != 1 || configuration[16 + 2 * i] != 64 || configuration[48 + i] != 16) std::abort();
    emulated.configured = true;
}

inline void emulated_load(int tile, const void *from, int64_t stride) {
    for (int r = 0; r < 16; r++) std::memcpy(emulated.at(tile).rows[r], static_cast<const char *>(from) + r * stride, 64);
}

inline void emulated_store(int tile, void *to, int64_t stride) {
    for (int r = 0; r < 16; r++) std::memcpy(static_cast<char *>(to) + r * stride, emulated.at(tile).rows[r], 64);
}

inline void emulated_multiply(int to, int a, int b) {
    const EmulatedTile &from_a = emulated.at(a), &from_b = emulated.at(b);
    auto number = [](float pack, bool odd) {
        uint32_t bits;
        std::memcpy(&bits, &pack, sizeof bits);
        bits = odd ? bits & 0xffff0000 : bits << 16;
        std::memcpy(&pack, &bits, sizeof pack);
        return pack;
    };
    for (int r = 0; r < 16; r++) {
        float even[16] = {}, odd[16] = {};
        for (int k = 0; k < 16; k++) {
            float low = number(from_a.rows[r][k], false), high = number(from_a.rows[r][k], true);
            for (int n = 0; n < 16; n++) {
                even[n] = __builtin_fmaf(low, number(from_b.rows[k][n], false), even[n]);
                odd[n] = __builtin_fmaf(high, number(from_b.rows[k][n], true), odd[n]);
            }
        }
        for (int n = 0; n < 16; n++) emulated.at(to).rows[r][n] += even[n] + odd[n];
    }
}

} // namespace RV_NAMESPACE

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(configuration) emulated_loadconfig(configuration)
#define _tile_release() (emulated.configured = false)
#define _tile_zero(tile) (emulated.at(tile) = {})
#define _tile_loadd(tile, from, stride) emulated_load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated_store(tile, to, stride)
#define _tile_dpbf16ps(to, a, b) emulated_multiply(to, a, b)
