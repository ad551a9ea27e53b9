// The selective scan of Mamba-1 by hand for AVX-512: the yardstick of the `cpu` bench's W5.
//
// state[t] = exp(dt[t]·A)·state[t−1] + dt[t]·x[t]·B[t];  y[t] = Σ_n C[t]·state[t] + D·x[t]
// x, dt, y [batch, seq, width]; a [width, 16]; b, c [batch, seq, 16]; d [width]; width a multiple of 16.
// A lane is a channel, so the 16 states of 16 channels fill 16 registers and nothing is summed across lanes.
#include <immintrin.h>

enum { LANES = 16, STATES = 16 };
// Rows ahead that are fetched: rows lie a page or more apart, where the hardware's own prefetching gives up.
enum { AHEAD = 16 };

// 2^x: the whole part goes into the exponent, the rest (|r| ≤ 1/2) through a polynomial of degree 5 (10⁻⁷).
static inline __m512 exp2_ps(__m512 x) {
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_set1_ps(1.32764713e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.67554096e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.55071309e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.40221202e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.93146944e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.00000012f));
    return _mm512_scalef_ps(p, whole);
}

static void block(const float *x, const float *dt, const float *a, const float *b, const float *c, const float *d, float *y,
                  long seq, long width) {
    __m512 state[STATES];
    __attribute__((aligned(64))) float rate[STATES][LANES]; // A·log2(e), so that exp is exp2
    for (int n = 0; n < STATES; n++) {
        state[n] = _mm512_setzero_ps();
        for (int i = 0; i < LANES; i++) rate[n][i] = a[i * STATES + n] * 1.44269504f;
    }
    const __m512 skip = _mm512_loadu_ps(d);
    for (long t = 0; t < seq; t++, x += width, dt += width, y += width, b += STATES, c += STATES) {
        const __m512 xt = _mm512_loadu_ps(x), step = _mm512_loadu_ps(dt), in = _mm512_mul_ps(step, xt);
        // Past the end of an array a prefetch does nothing.
        _mm_prefetch((const char *)(x + AHEAD * width), _MM_HINT_T0);
        _mm_prefetch((const char *)(dt + AHEAD * width), _MM_HINT_T0);
        __builtin_prefetch(y + AHEAD * width, 1);
        __m512 even = _mm512_mul_ps(skip, xt), odd = _mm512_setzero_ps();
#pragma GCC unroll 16
        for (int n = 0; n < STATES; n++) {
            const __m512 decay = exp2_ps(_mm512_mul_ps(step, _mm512_load_ps(rate[n])));
            state[n] = _mm512_fmadd_ps(decay, state[n], _mm512_mul_ps(in, _mm512_set1_ps(b[n])));
            __m512 *sum = n % 2 ? &odd : &even;
            *sum = _mm512_fmadd_ps(state[n], _mm512_set1_ps(c[n]), *sum);
        }
        _mm512_storeu_ps(y, _mm512_add_ps(even, odd));
    }
}

int scan(const float *x, const float *dt, const float *a, const float *b, const float *c, const float *d, float *y,
         long batch, long seq, long width, long states, long threads) {
    if (states != STATES || width % LANES) return 1;
    const long blocks = width / LANES;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < batch * blocks; i++) {
        const long row = i / blocks * seq, lane = i % blocks * LANES, at = row * width + lane;
        block(x + at, dt + at, a + lane * STATES, b + row * STATES, c + row * STATES, d + lane, y + at, seq, width);
    }
    return 0;
}
