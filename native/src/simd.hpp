// Vectors of one instruction set. Included once by each of its sources, which define
//   RV_NAMESPACE     the namespace of everything: an inline function compiled with other flags is another function
//   RV_VECTOR_BYTES  16, 32 or 64
//   RV_COLUMNS       the number of vectors per row in the registers of a product
// Most of it uses GCC's vector extension, and intrinsics only for instructions that the extension cannot express.
#pragma once

#include "libm.hpp"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define RV_INLINE inline __attribute__((always_inline))

namespace RV_NAMESPACE {

template <class T> struct VectorOf;
template <> struct VectorOf<float> {
    typedef float type __attribute__((vector_size(RV_VECTOR_BYTES)));
    typedef int32_t mask __attribute__((vector_size(RV_VECTOR_BYTES)));
    typedef uint32_t bits __attribute__((vector_size(RV_VECTOR_BYTES)));
    using lane = int32_t;
};
template <> struct VectorOf<double> {
    typedef double type __attribute__((vector_size(RV_VECTOR_BYTES)));
    typedef int64_t mask __attribute__((vector_size(RV_VECTOR_BYTES)));
    typedef uint64_t bits __attribute__((vector_size(RV_VECTOR_BYTES)));
    using lane = int64_t;
};

template <class T> using Vec = typename VectorOf<T>::type;
template <class T> using Mask = typename VectorOf<T>::mask;
// Lanes of a vector.
template <class T> constexpr int WIDTH = RV_VECTOR_BYTES / sizeof(T);

template <class T> RV_INLINE Vec<T> load(const T *from) {
    Vec<T> v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <class T> RV_INLINE void store(T *to, Vec<T> v) { std::memcpy(to, &v, sizeof v); }
// x - 0 is x for every x, so this compiles to a broadcast (0 + x would not: it turns -0 into 0).
template <class T> RV_INLINE Vec<T> splat(T x) { return x - Vec<T>{}; }
template <class T> RV_INLINE Vec<T> select(Mask<T> which, Vec<T> yes, Vec<T> no) { return which ? yes : no; }
template <class T> RV_INLINE Vec<T> larger(Vec<T> a, Vec<T> b) { return a > b ? a : b; }

#if defined(__AVX512F__)
template <> RV_INLINE Vec<float> splat<float>(float x) { return _mm512_set1_ps(x); }
template <> RV_INLINE Vec<float> larger<float>(Vec<float> a, Vec<float> b) { return _mm512_max_ps(a, b); }
#elif defined(__AVX2__)
template <> RV_INLINE Vec<float> splat<float>(float x) { return _mm256_set1_ps(x); }
template <> RV_INLINE Vec<float> larger<float>(Vec<float> a, Vec<float> b) { return _mm256_max_ps(a, b); }
#endif

// Rounds a number here: it passes through memory, so that the compiler cannot fuse it with the next operation.
template <class V> RV_INLINE V rounded(V x) {
    asm("" : "+m"(x));
    return x;
}

template <class T> RV_INLINE bool all_equal(Vec<T> a, Vec<T> b) {
    Mask<T> differ = a != b;
    typename VectorOf<T>::lane any = 0;
    for (int i = 0; i < WIDTH<T>; i++) any |= differ[i];
    return any == 0;
}
#if defined(__AVX512F__)
template <> RV_INLINE bool all_equal<float>(Vec<float> a, Vec<float> b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) == 0xffff;
}
#endif

// a x b + c, rounded once if the processor can. Left to the compiler, whether it does may depend on the loop around it, and
// then the bits of a row would depend on the rows that are computed together with it.
template <class T> RV_INLINE Vec<T> fused(Vec<T> a, Vec<T> b, Vec<T> c) { return a * b + c; }
#if defined(__AVX512F__)
template <> RV_INLINE Vec<float> fused<float>(Vec<float> a, Vec<float> b, Vec<float> c) {
    return _mm512_fmadd_ps(a, b, c);
}
template <> RV_INLINE Vec<double> fused<double>(Vec<double> a, Vec<double> b, Vec<double> c) {
    return _mm512_fmadd_pd(a, b, c);
}
#elif defined(__FMA__)
template <> RV_INLINE Vec<float> fused<float>(Vec<float> a, Vec<float> b, Vec<float> c) {
    return _mm256_fmadd_ps(a, b, c);
}
template <> RV_INLINE Vec<double> fused<double>(Vec<double> a, Vec<double> b, Vec<double> c) {
    return _mm256_fmadd_pd(a, b, c);
}
#endif

// Whether any lane of `a` is larger than that of `b`.
template <class T> RV_INLINE bool some_larger(Vec<T> a, Vec<T> b) {
    Mask<T> which = a > b;
    typename VectorOf<T>::lane any = 0;
    for (int i = 0; i < WIDTH<T>; i++) any |= which[i];
    return any;
}
#if defined(__AVX512F__)
template <> RV_INLINE bool some_larger<float>(Vec<float> a, Vec<float> b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}
#endif

// 2^f on [-1/2, 1/2] as 1 + f (c[0] + f (c[1] + ...)), so that 2^0 is exactly 1; with AVX-512 in float32 on [0, 1], where
// 2^1 is exact, too, because scores near the largest have an f near 0 or 1. Minimax coefficients with a relative error of
// 3.4e-6 or less for 4 terms and 9.3e-8 for 5; for 13 the Taylor series, exact to the last bits of a double.
template <int terms> struct Series;
#if defined(__AVX512DQ__)
template <> struct Series<4> {
    static constexpr double c[] = {0.693032121, 0.241379763, 0.052032369, 0.0135557472};
};
template <> struct Series<5> {
    static constexpr double c[] = {0.693151739, 0.240159271, 0.055818676, 0.00899099509, 0.00187931864};
};
#else
template <> struct Series<4> {
    static constexpr double c[] = {0.693124193, 0.240240986, 0.055906425, 0.00958285317};
};
template <> struct Series<5> {
    static constexpr double c[] = {0.693146978, 0.240222421, 0.0555073374, 0.00967151269, 0.00132647272};
};
#endif
template <> struct Series<13> {
    static constexpr double c[] = {
        0.69314718055994530942, 0.24022650695910071233,  0.055504108664821579953, 0.0096181291076284771619,
        0.0013333558146428443423, 1.5403530393381609954e-4, 1.5252733804059840280e-5, 1.3215486790144309488e-6,
        1.0178086009239699727e-7, 7.0549116208011233298e-9, 4.4455382718708114975e-10, 2.5678435993488205141e-11,
        1.3691488853904128880e-12,
    };
};

template <int terms, class T> RV_INLINE Vec<T> series(Vec<T> f) {
    Vec<T> p = splat<T>(T(Series<terms>::c[terms - 1]));
#pragma GCC unroll 16
    for (int i = terms - 2; i >= 0; i--) p = p * f + T(Series<terms>::c[i]);
    return p * f + T(1);
}

// 2^x for x <= 127 (1023 for doubles): exactly 0 for -inf and whatever is below the smallest normal number, NaN for NaN.
// Of a larger x the result means nothing. Only backward has such x, at keys that the lane does not hear, and drops them.
template <int terms, class T> RV_INLINE Vec<T> exp2(Vec<T> x) {
#if defined(__AVX512DQ__)
    // x - floor(x), which is 0 for -inf; and times 2^floor(x).
    if constexpr (sizeof(T) == 4)
        return _mm512_scalef_ps(series<terms, T>(_mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)), x);
#endif
    constexpr bool wide = sizeof(T) == 8;
    constexpr T lowest = wide ? T(-1022) : T(-126);
    Vec<T> floor = splat<T>(lowest);
    Vec<T> clamped = x < floor ? floor : x; // written so that NaN remains NaN
    // Adding and subtracting 1.5 x 2^mantissa rounds to an integer, and leaves it in the low bits.
    constexpr T magic = wide ? T(6755399441055744.0) : T(12582912.0);
    Vec<T> rounded = clamped + magic;
    // Unsigned, so that the sum may wrap where x is too large.
    typename VectorOf<T>::bits whole, bits;
    std::memcpy(&whole, &rounded, sizeof whole);
    Vec<T> p = series<terms, T>(clamped - (rounded - magic));
    std::memcpy(&bits, &p, sizeof bits);
    bits += whole << (wide ? 52 : 23); // the shift drops all but the low bits, which are the exponent
    std::memcpy(&p, &bits, sizeof p);
    Vec<T> zero{};
    // The low bits of a NaN are no exponent, and could make a number of it.
    p = x == x ? p : x;
    return x < floor ? zero : p;
}

// tanh, accurate to the last few bits also near 0.
template <class T> RV_INLINE Vec<T> tanh(Vec<T> x) {
    constexpr double log2e = 1.44269504088896340736;
    constexpr T limit = sizeof(T) == 8 ? T(20) : T(9.5);
    Vec<T> clamped = x > limit ? splat<T>(limit) : x;
    clamped = clamped < -limit ? splat<T>(-limit) : clamped;
    Vec<T> e = exp2<sizeof(T) == 8 ? 13 : 5, T>(clamped * T(2 * log2e));
    Vec<T> far = T(1) - T(2) / (e + T(1));
    if (sizeof(T) == 8) {
        // 1 - 2/(e+1) loses digits near 0, so (e-1)/(e+1) is computed with e-1 from the series of expm1.
        Vec<T> y = clamped * T(2), sum = splat<T>(T(1.0 / 6402373705728000.0));
        double factorial = 6402373705728000.0; // 18!
        for (int i = 17; i >= 1; i--) {
            factorial /= i + 1;
            sum = sum * y + T(1.0 / factorial);
        }
        Vec<T> less = sum * y;
        Vec<T> near = less / (less + T(2));
        return select<T>((clamped < T(0.35)) & (clamped > T(-0.35)), near, far);
    }
    Vec<T> z = clamped * clamped;
    Vec<T> odd = ((((z * T(-5.70498872745e-3) + T(2.06390887954e-2)) * z + T(-5.37397155531e-2)) * z +
                   T(1.33314422036e-1)) * z + T(-3.33332819422e-1)) * z * clamped + clamped;
    return select<T>((clamped < T(0.625)) & (clamped > T(-0.625)), odd, far);
}

} // namespace RV_NAMESPACE
