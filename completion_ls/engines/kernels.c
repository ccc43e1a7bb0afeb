/* The products and the attention of a pass of few tokens.
 *
 * Such a pass is bound by memory: every weight is read once, so what counts is that weights and
 * keys are read as small as they are stored, and that nothing happens between the reads. A row's
 * result does not depend on which rows are computed beside it, nor on the number of threads.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define REST() __builtin_ia32_pause()
#elif defined(__aarch64__)
#include <arm_neon.h>
#define REST() __asm__ volatile("yield")
#else
#define REST() ((void)0)
#endif

/* ---- Threads. The caller works as well and never waits for a helper that has not begun: on a busy
 * machine a helper that does not get a core in time simply finds nothing left to do. ---- */

typedef void (*Work)(void *argument, int part);

static struct {
    pthread_mutex_t caller; /* who calls from several threads calls one after the other */
    atomic_uint_least64_t ticket; /* the parts of the work, and the next one (32 bits each) */
    atomic_int done, asleep;
    Work work;
    void *argument;
    pthread_mutex_t lock;
    pthread_cond_t wake, want;
    atomic_int wanted; /* so many helpers may work, ... */
    int helpers;       /* ... and so many there are */
} pool = {.caller = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .want = PTHREAD_COND_INITIALIZER};

enum { PATIENCE = 2000, STACK = 1 << 20 }; /* pauses before a helper goes to sleep: some tens of microseconds;
    bytes of its stack: a block of keys of the largest heads takes a third of that */

static int is_left(uint64_t ticket) { return (uint32_t)ticket < ticket >> 32; }

/* A helper that comes late, with its mind on work that is done, finds the parts of the next one or
 * none: which part it has, and that there is one, is told by the same read that takes it. */
static int take_part(void) {
    if (!is_left(atomic_load(&pool.ticket))) return 0;
    uint64_t mine = atomic_fetch_add(&pool.ticket, 1);
    if (!is_left(mine)) return 0;
    pool.work(pool.argument, (int)(uint32_t)mine);
    atomic_fetch_add(&pool.done, 1);
    return 1;
}

static int is_wanted(int number) { return number < atomic_load(&pool.wanted); }

static void *help(void *argument) {
    const int number = (int)(intptr_t)argument;
    for (int idle = 0;; idle++) {
        if (is_wanted(number) && take_part()) {
            idle = 0;
        } else if (is_wanted(number) && idle < PATIENCE) {
            REST();
        } else {
            pthread_mutex_lock(&pool.lock);
            while (!is_wanted(number)) pthread_cond_wait(&pool.want, &pool.lock); /* no work wakes it */
            atomic_fetch_add(&pool.asleep, 1);
            while (is_wanted(number) && !is_left(atomic_load(&pool.ticket)))
                pthread_cond_wait(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.asleep, 1);
            pthread_mutex_unlock(&pool.lock);
            idle = 0;
        }
    }
    return NULL;
}

static void share(Work work, void *argument, int parts) {
    if (atomic_load(&pool.wanted) == 0 || parts == 1) {
        for (int part = 0; part < parts; part++) work(argument, part);
        return;
    }
    pool.work = work;
    pool.argument = argument;
    atomic_store(&pool.done, 0);
    atomic_store(&pool.ticket, (uint64_t)parts << 32);
    if (atomic_load(&pool.asleep)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    while (take_part()) {}
    for (int spins = 0; atomic_load(&pool.done) < parts; spins++)
        if (spins < PATIENCE) REST();
        else sched_yield();
}

/* A process that is forked has none of the threads, and locks as they happened to be. */
static void start_anew(void) {
    pthread_mutex_init(&pool.caller, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.want, NULL);
    atomic_store(&pool.ticket, 0); /* what was left of the work of another thread is not for helpers to come */
    atomic_store(&pool.asleep, 0);
    atomic_store(&pool.wanted, 0);
    pool.helpers = 0;
}

/* Use so many threads from now on, the caller included. Returns how many there are. */
int use_threads(int threads) {
    static int prepared;
    pthread_mutex_lock(&pool.caller);
    if (!prepared) prepared = !pthread_atfork(NULL, NULL, start_anew);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK); /* not what the machine happens to give */
    for (; pool.helpers < threads - 1; pool.helpers++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, help, (void *)(intptr_t)pool.helpers)) break;
        pthread_detach(thread);
    }
    pthread_attr_destroy(&attributes);
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.wanted, threads - 1 < pool.helpers ? threads - 1 : pool.helpers);
    pthread_cond_broadcast(&pool.want);
    pthread_cond_broadcast(&pool.wake); /* those that are not wanted go and wait elsewhere */
    pthread_mutex_unlock(&pool.lock);
    const int there_are = pool.helpers + 1;
    pthread_mutex_unlock(&pool.caller);
    return there_are;
}

/* ---- Numbers ---- */

/* With sizes that are known where it is called. */
#define INLINED static inline __attribute__((always_inline))

/* a * b + c, rounded once where the machine can. Never left to the compiler: GCC, where it tunes for AMD's
 * processors, fuses in one loop and not in the next, and the same sum has other bits in another pass. */
static inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

static inline float power_of_e(float x) { /* for x <= 88, to the last bits of a float */
    float n = __builtin_rintf(x * 1.44269504f);
    float r = fused(n, 2.12194440e-4f, fused(n, -0.693359375f, x));
    float p = 1.9875691500e-4f;
    p = fused(p, r, 1.3981999507e-3f);
    p = fused(p, r, 8.3334519073e-3f);
    p = fused(p, r, 4.1665795894e-2f);
    p = fused(p, r, 1.6666665459e-1f);
    p = fused(p, r, 5.0000001201e-1f);
    p = fused(p * r, r, r) + 1.0f;
    int32_t bits = ((int32_t)(n < -126.0f ? -126.0f : n) + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return x < -87.0f ? 0.0f : p * scale;
}

/* As many lanes as a register of this machine has; where it has fewer than eight, compilers take two. */
#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
#define TWICE (2 * LANES) /* whole numbers of 16 bits in a register */
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(2 * TWICE)));
typedef int16_t HalfShorts __attribute__((vector_size(2 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));
typedef int8_t SignedBytes __attribute__((vector_size(LANES)));
typedef int8_t TwiceBytes __attribute__((vector_size(TWICE)));
typedef float Four __attribute__((vector_size(16)));

/* What is read soon is asked for now: alone, processors do not look far enough ahead. */
static inline void fetch(const void *here, long ahead) { __builtin_prefetch((const char *)here + ahead); }

static inline Floats load(const float *from) {
    Floats values;
    memcpy(&values, from, sizeof values);
    return values;
}

static inline Floats load_bf16(const uint16_t *from) {
    Halves values;
    memcpy(&values, from, sizeof values);
    return (Floats)(__builtin_convertvector(values, Words) << 16);
}

/* sum + a * b, as `fused`. */
static inline Floats add_product(Floats sum, Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
    float32x4_t part[3][LANES / 4];
    memcpy(part[0], &sum, sizeof sum), memcpy(part[1], &a, sizeof a), memcpy(part[2], &b, sizeof b);
    for (int i = 0; i < LANES / 4; i++) part[0][i] = vfmaq_f32(part[0][i], part[1][i], part[2][i]);
    memcpy(&sum, part[0], sizeof sum);
    return sum;
#else
    return sum + a * b;
#endif
}

static inline Floats spread(float x) { return x - (Floats){0}; }

static inline float total_of(Floats values) {
    Four part[LANES / 4];
    memcpy(part, &values, sizeof values);
    for (int half = LANES / 8; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return (part[0][0] + part[0][2]) + (part[0][1] + part[0][3]);
}

/* sum[i] + a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1]: compilers do not find the instruction. */
static inline Ints add_pairs(Ints sum, Shorts a, Shorts b) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return sum + ((Ints)a << 16 >> 16) * ((Ints)b << 16 >> 16) + ((Ints)a >> 16) * ((Ints)b >> 16);
#endif
}

static inline Floats load_bytes(const int8_t *from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
    SignedBytes bytes;
    memcpy(&bytes, from, sizeof bytes); /* in steps: GCC has no vector code for the whole way */
    return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(bytes, HalfShorts), Ints), Floats);
#endif
}

static inline Shorts load_shorts(const int8_t *from) {
#if defined(__AVX512BW__)
    return (Shorts)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (Shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
#else
    TwiceBytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, Shorts);
#endif
}

#if defined(__clang__)
#define CHOOSE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CHOOSE(a, b, ...) __builtin_shuffle(a, b, (Ints){__VA_ARGS__})
#endif
#define EIGHT_OF(F, bit, n) \
    F(bit, n), F(bit, n + 1), F(bit, n + 2), F(bit, n + 3), F(bit, n + 4), F(bit, n + 5), F(bit, n + 6), F(bit, n + 7)
#if LANES == 16
#define LANES_OF(F, bit) EIGHT_OF(F, bit, 0), EIGHT_OF(F, bit, 8)
#else
#define LANES_OF(F, bit) EIGHT_OF(F, bit, 0)
#endif

/* The lanes of a and b whose number has not the bit, and those whose number has it: side by side, those of b
 * where it is set. */
#define WITHOUT_BIT(bit, L) ((L) & (bit) ? LANES + (L) - (bit) : (L))
#define WITH_BIT(bit, L) ((L) & (bit) ? LANES + (L) : (L) + (bit))
#define LANES_WITHOUT(bit, a, b) CHOOSE(a, b, LANES_OF(WITHOUT_BIT, bit))
#define LANES_WITH(bit, a, b) CHOOSE(a, b, LANES_OF(WITH_BIT, bit))

#define SWAP(bit)                                               \
    for (int k = 0; k < LANES; k++)                             \
        if (!(k & bit)) {                                       \
            const Ints first = LANES_WITHOUT(bit, x[k], x[k + bit]); \
            x[k + bit] = LANES_WITH(bit, x[k], x[k + bit]);     \
            x[k] = first;                                       \
        }
#define FOLD(bit) \
    for (int k = 0; k < bit; k++) x[k] = LANES_WITHOUT(bit, x[k], x[k + bit]) + LANES_WITH(bit, x[k], x[k + bit]);

/* Lane k of x[i] and lane i of x[k] change places. */
static inline void transpose(Ints x[LANES]) {
    SWAP(1) SWAP(2) SWAP(4)
#if LANES == 16
    SWAP(8)
#endif
}

/* Lane k of the result is the total of x[k]. */
static inline Ints totals_of(Ints x[LANES]) {
#if LANES == 16
    FOLD(8)
#endif
    FOLD(4) FOLD(2) FOLD(1)
    return x[0];
}

static inline float dot(const float *a, const float *b, int n) {
    Floats sum = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES) sum = add_product(sum, load(a + i), load(b + i));
    float total = total_of(sum);
    for (; i < n; i++) total += a[i] * b[i];
    return total;
}

static void normalize(const float *restrict x, const float *restrict weight, int n, float eps,
                      float *restrict out) { /* RMS norm */
    float scale = 1.0f / __builtin_sqrtf(dot(x, x, n) / (float)n + eps);
    for (int i = 0; i < n; i++) out[i] = x[i] * scale * weight[i];
}

/* ---- Linear layers ---- */

enum { INT8, INT4, BF16 };
enum { GROUP = 32, TILE = 4, TILE_ROWS = LANES / TILE, MANY = 16 };
enum { SCRATCH = 12288 /* widened weights */, LINE = 64 /* bytes of the processor's cache */ };

#define PADDED(n) (((n) + TWICE - 1) / TWICE * TWICE)

typedef struct {
    int32_t kind, outputs, inputs;
    float limit;          /* INT8: inputs are whole numbers up to this */
    const void *weight;   /* [outputs, inputs]; INT4: two a byte, in a group first and second half */
    const float *scale;   /* INT8: [outputs] */
    const float *pairs;   /* INT4: [outputs, groups, 2 (scale, least)] */
    const float *bias;    /* [outputs] or NULL */
} Linear;

typedef struct {
    const Linear *layer;
    const float *x, *norm;
    float eps;
    int gated;
    float *input;     /* [rows, inputs], made of x, ... */
    int16_t *v;       /* ... [rows, PADDED(inputs)] in units of `unit` */
    float *unit;      /* [rows] */
    float *out;       /* [rows, outputs] */
    int rows, add, parts;
} Product;

/* Inputs keep as many bits as fit so that sums of whole numbers are exact in 32 bits, whatever the
 * order: so a row's result is the same in a pass of one row and of a thousand. */
static float quantize(const float *restrict x, int n, float limit, int16_t *restrict v) {
    int32_t top = 0;
    for (int i = 0; i < n; i++) { /* as bits, not as numbers: what is not finite comes out on top */
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        top = bits > top ? bits : top;
    }
    float largest;
    memcpy(&largest, &top, 4);
    float inverse = largest > 0 ? limit / largest : 0;
    for (int i = 0; i < n; i++) v[i] = (int16_t)(int32_t)__builtin_rintf(x[i] * inverse);
    return largest / limit;
}

INLINED Shorts load_whole(const int16_t *from) {
    Shorts values;
    memcpy(&values, from, sizeof values);
    return values;
}

/* Adds the products of some weights in each of four rows with those of some rows of inputs: each that is
 * read is used several times. */
INLINED void multiply(Ints sum[LANES], const Shorts w[TILE], const int16_t *v, int stride, const int rows) {
    for (int r = 0; r < rows; r++) {
        const Shorts inputs = load_whole(v + r * stride);
        for (int i = 0; i < TILE; i++) sum[r * TILE + i] = add_pairs(sum[r * TILE + i], w[i], inputs);
    }
}

/* The sums of a tile, lane r * TILE + i that of row r and output i: from rows of weights as they are, */
INLINED Ints tile_of_bytes(const int8_t *const w[TILE], int n, const int16_t *v, const int rows) {
    Ints sum[LANES] = {{0}};
    Shorts wide[TILE];
    int k = 0;
    for (; k + TWICE <= n; k += TWICE) {
        for (int i = 0; i < TILE; i++) wide[i] = load_shorts(w[i] + k);
        for (int i = k / TWICE % (64 / TWICE); i < TILE; i += 64 / TWICE) fetch(w[i] + k, 2 * TILE * n); /* each once */
        multiply(sum, wide, v + k, PADDED(n), rows);
    }
    if (k < n) { /* what is behind the last row is not ours to read */
        int8_t rest[TILE][TWICE] = {{0}};
        for (int i = 0; i < TILE; i++) memcpy(rest[i], w[i] + k, n - k);
        for (int i = 0; i < TILE; i++) wide[i] = load_shorts(rest[i]);
        multiply(sum, wide, v + k, PADDED(n), rows);
    }
    return totals_of(sum);
}

/* or from rows that were widened. */
INLINED Ints tile_of_shorts(const int16_t *w, int stride, const int16_t *v, const int rows) {
    Ints sum[LANES] = {{0}};
    Shorts wide[TILE];
    for (int k = 0; k < stride; k += TWICE) {
        for (int i = 0; i < TILE; i++) wide[i] = load_whole(w + i * stride + k);
        multiply(sum, wide, v + k, stride, rows);
    }
    return totals_of(sum);
}

static inline void put(const Product *p, int row, int output, float y) {
    if (p->layer->bias) y += p->layer->bias[output];
    float *to = p->out + (long)row * p->layer->outputs + output;
    *to = p->add ? *to + y : y;
}

#define OUTPUT_OF(tile, L) ((L) % (tile))
#define INPUT_OF(tile, L) ((L) / (tile))

INLINED void put_tile(const Product *p, int row, const int rows, int j, Ints sums) {
    const Linear *l = p->layer;
    Ints scales = {0}, units = {0};
    Four y[TILE_ROWS], other;
    if (l->outputs - j < TILE) {
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < l->outputs - j; i++)
                put(p, row + r, j + i, (float)sums[r * TILE + i] * (p->unit[row + r] * l->scale[j + i]));
        return;
    }
    memcpy(&scales, l->scale + j, sizeof *y);
    memcpy(&units, p->unit + row, rows * sizeof(float));
    scales = CHOOSE(scales, scales, LANES_OF(OUTPUT_OF, TILE));
    units = CHOOSE(units, units, LANES_OF(INPUT_OF, TILE));
    Floats numbers = __builtin_convertvector(sums, Floats) * ((Floats)units * (Floats)scales);
    memcpy(y, &numbers, sizeof y);
    for (int r = 0; r < rows; r++) {
        float *to = p->out + (long)(row + r) * l->outputs + j;
        if (l->bias) memcpy(&other, l->bias + j, sizeof other), y[r] += other;
        if (p->add) memcpy(&other, to, sizeof other), y[r] += other;
        memcpy(to, &y[r], sizeof other);
    }
}

static void int8_rows(const Product *p, int from, int to) {
    const int n = p->layer->inputs;
    const int8_t *w[TILE];
    for (int j = from; j < to; j += TILE) {
        for (int i = 0; i < TILE; i++) w[i] = (const int8_t *)p->layer->weight + (long)(j + i < to ? j + i : j) * n;
        for (int row = 0; row < p->rows; row += TILE_ROWS) {
            const int16_t *v = p->v + (long)row * PADDED(n);
            switch (p->rows - row) {
            case 1: put_tile(p, row, 1, j, tile_of_bytes(w, n, v, 1)); break;
#if LANES == 16
            case 2: put_tile(p, row, 2, j, tile_of_bytes(w, n, v, 2)); break;
            case 3: put_tile(p, row, 3, j, tile_of_bytes(w, n, v, 3)); break;
#endif
            default: put_tile(p, row, TILE_ROWS, j, tile_of_bytes(w, n, v, TILE_ROWS));
            }
        }
    }
}

/* The same for many rows: some rows of weights are widened first. */
static void int8_rows_of_many(const Product *p, int from, int to) {
    const int n = p->layer->inputs, stride = PADDED(n), at_once = SCRATCH / stride / TILE * TILE;
    int16_t wide[SCRATCH] __attribute__((aligned(LINE)));
    for (int first = from; first < to; first += at_once) {
        const int last = first + at_once < to ? first + at_once : to;
        for (int j = first; j < (last + TILE - 1) / TILE * TILE; j++) { /* a tile that is not full repeats a row */
            const int8_t *w = (const int8_t *)p->layer->weight + (long)(j < last ? j : last - 1) * n;
            int16_t *own = wide + (j - first) * stride;
            int k = 0;
            for (; k + TWICE <= n; k += TWICE) {
                const Shorts values = load_shorts(w + k);
                memcpy(own + k, &values, sizeof values);
            }
            for (; k < stride; k++) own[k] = k < n ? w[k] : 0;
        }
        for (int row = 0; row < p->rows; row += TILE_ROWS)
            for (int j = first; j < last; j += TILE) {
                const int16_t *w = wide + (j - first) * stride, *v = p->v + (long)row * stride;
                if (p->rows - row >= TILE_ROWS) put_tile(p, row, TILE_ROWS, j, tile_of_shorts(w, stride, v, TILE_ROWS));
                else
                    for (int r = row; r < p->rows; r++, v += stride)
                        put_tile(p, r, 1, j, tile_of_shorts(w, stride, v, 1));
            }
    }
}

enum { WIDE_TILE = 8, FAR = 4096 /* bytes */ };

/* Weights that are widened to floats, a register at a time, and used for some rows of inputs. */
INLINED void float_rows(const Product *p, int j, int row, const int rows, const int is_int4) {
    const Linear *l = p->layer;
    const int n = l->inputs;
    const float *x = p->input + (long)row * n;
    Floats sum[WIDE_TILE] = {{0}};
    if (is_int4) {
        const uint8_t *w = (const uint8_t *)l->weight + (long)j * (n / 2);
        const float *pair = l->pairs + (long)j * (n / GROUP) * 2;
        for (int k = 0; k < n; k += GROUP, w += GROUP / 2, pair += 2) {
            fetch(w, FAR);
            fetch(pair, FAR / 2);
            const Floats scale = spread(pair[0]), least = spread(pair[1]);
            for (int i = 0; i < GROUP / 2; i += LANES) {
                Bytes bytes;
                memcpy(&bytes, w + i, sizeof bytes);
                Words words = __builtin_convertvector(__builtin_convertvector(bytes, Halves), Words);
                Floats first = add_product(least, __builtin_convertvector((Ints)(words & 15), Floats), scale);
                Floats second = add_product(least, __builtin_convertvector((Ints)(words >> 4), Floats), scale);
                for (int r = 0; r < rows; r++) {
                    sum[r] = add_product(sum[r], first, load(x + r * n + k + i));
                    sum[r] = add_product(sum[r], second, load(x + r * n + k + i + GROUP / 2));
                }
            }
        }
    } else {
        const uint16_t *w = (const uint16_t *)l->weight + (long)j * n;
        for (int k = 0; k < n; k += LANES) {
            fetch(w + k, FAR);
            Floats weight = load_bf16(w + k);
            for (int r = 0; r < rows; r++) sum[r] = add_product(sum[r], weight, load(x + r * n + k));
        }
    }
    for (int r = 0; r < rows; r++) put(p, row + r, j, total_of(sum[r]));
}

static void wide_rows(const Product *p, int from, int to) {
    const int is_int4 = p->layer->kind == INT4;
    for (int j = from; j < to; j++) /* a weight row stays in the cache while all use it */
        for (int row = 0; row < p->rows;) {
            const int rows = p->rows - row >= WIDE_TILE ? WIDE_TILE : p->rows - row >= 2 ? 2 : 1;
            if (rows == WIDE_TILE && is_int4) float_rows(p, j, row, WIDE_TILE, 1);
            else if (rows == WIDE_TILE) float_rows(p, j, row, WIDE_TILE, 0);
            else if (rows == 2 && is_int4) float_rows(p, j, row, 2, 1);
            else if (rows == 2) float_rows(p, j, row, 2, 0);
            else if (is_int4) float_rows(p, j, row, 1, 1);
            else float_rows(p, j, row, 1, 0);
            row += rows;
        }
}

static void product_part(void *argument, int part) {
    const Product *p = argument;
    const int tiles = (p->layer->outputs + TILE - 1) / TILE;
    const int from = TILE * (int)((long)tiles * part / p->parts);
    int to = TILE * (int)((long)tiles * (part + 1) / p->parts);
    to = to < p->layer->outputs ? to : p->layer->outputs;
    const int fits = PADDED(p->layer->inputs) * TILE <= SCRATCH;
    if (p->layer->kind != INT8) wide_rows(p, from, to);
    else if (p->rows > MANY && fits) int8_rows_of_many(p, from, to);
    else int8_rows(p, from, to);
}

/* One row of a layer's inputs: x through the RMS norm where there is one; or, if it is `gated`
 * [2 * n], silu(its first half) * its second. */
static void make_input(const float *restrict x, int n, const float *norm, float eps, int gated, float *restrict out) {
    if (gated) {
        for (int i = 0; i < n; i++) {
            const float away = -x[i] > 88.0f ? 88.0f : -x[i];
            out[i] = x[i] / (1.0f + power_of_e(away)) * x[n + i];
        }
    } else if (norm) {
        normalize(x, norm, n, eps, out);
    } else {
        memcpy(out, x, n * sizeof(float));
    }
}

/* What is little for each row is not worth a helper where there are few. */
static void share_rows(Work work, void *argument, int rows) {
    if (rows > MANY) share(work, argument, rows);
    else
        for (int row = 0; row < rows; row++) work(argument, row);
}

static void *aligned(size_t bytes) { return aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE); }

static void prepare_part(void *argument, int row) {
    const Product *p = argument;
    const int n = p->layer->inputs;
    make_input(p->x + (long)row * (p->gated ? 2 * n : n), n, p->norm, p->eps, p->gated, p->input + (long)row * n);
    if (p->layer->kind != INT8) return;
    int16_t *v = p->v + (long)row * PADDED(n);
    p->unit[row] = quantize(p->input + (long)row * n, n, p->layer->limit, v);
    memset(v + n, 0, (PADDED(n) - n) * sizeof *v);
}

/* out [rows, outputs] = layer(inputs made of x), or added to it. Returns 1 where there is no memory. */
int linear(const Linear *layer, const float *x, int rows, const float *norm, float eps, int gated,
            float *out, int add) {
    const size_t n = layer->inputs, all = rows;
    int16_t *v = aligned(all * (PADDED(n) * sizeof(int16_t) + (n + 1) * sizeof(float)));
    if (!v) return 1;
    float *unit = (float *)(v + all * PADDED(n)), *input = unit + all;
    pthread_mutex_lock(&pool.caller);
    Product product = {layer, x, norm, eps, gated, input, v, unit, out, rows, add,
                       4 * (atomic_load(&pool.wanted) + 1)};
    share_rows(prepare_part, &product, rows);
    share(product_part, &product, product.parts);
    pthread_mutex_unlock(&pool.caller);
    free(v);
    return 0;
}

/* ---- Attention ----
 *
 * Keys and values are kept in a byte an element, each row of a head with the unit that it is counted
 * in. The keys that a row of a pass sees are taken in the order of the text, in blocks that begin at
 * fixed places of it, wherever they are in the cache; scores are sums of whole numbers, and values
 * are added one key after the other: so its result is the same to the bit in whatever pass. */

enum { KEYS = 128, BATCH = 6, FEW = 8, MOST_GROUP = 16, TOGETHER = 32 }; /* keys in a block; queries whose scores are
    computed at once; queries that are not worth preparing the keys; rows of which blocks are shared */

typedef struct {
    int32_t heads, kv_heads, size;
    float eps;
    const float *q_norm, *k_norm; /* [size] or NULL */
} Heads;

#define WIDTH(size) (((size) + 63) / 64 * 64) /* elements of a row, the last of them zero, ... */
#define STRIDE(size) (WIDTH(size) + (int)sizeof(float)) /* ... and its bytes */

typedef struct {
    const Heads *h;
    const float *qkv, *cos, *sin;
    int8_t *cache;          /* [2, kv_heads, capacity, STRIDE(size)] */
    int capacity, past;     /* its slots, and those that are in use */
    int16_t *q;             /* [kv_heads, queries, WIDTH(size)], a query is a head of a row, ... */
    float *unit;            /* [kv_heads, queries] ... in units of this */
    float *sums;            /* [kv_heads, blocks, queries, size + 2]: values, largest score, weights */
    const int32_t *slots, *ends;
    float *out;
    int rows, group, queries, common, shared, blocks, longest;
} Attention;

static inline float unit_of(const int8_t *row, int size) {
    float unit;
    memcpy(&unit, row + WIDTH(size), sizeof unit);
    return unit;
}

/* The weights of the keys for one query from its scores s[KEYS], of which it sees the first `end`; each
 * weight is then multiplied with the unit of its value, so that what is added are whole numbers. */
static void to_weights(float *restrict s, int end, const float *restrict units, float *largest, float *total) {
    float most[LANES], sum[LANES] = {0}, top = -3e38f; /* not infinite: it may see nothing here */
    end = end < 0 ? 0 : end < KEYS ? end : KEYS;
    for (int t = end; t < KEYS; t++) s[t] = -__builtin_inff();
    for (int i = 0; i < LANES; i++) most[i] = top;
    for (int t = 0; t < KEYS; t += LANES)
        for (int i = 0; i < LANES; i++) most[i] = s[t + i] > most[i] ? s[t + i] : most[i];
    for (int i = 0; i < LANES; i++) top = most[i] > top ? most[i] : top;
    for (int t = 0; t < KEYS; t += LANES)
        for (int i = 0; i < LANES; i++) {
            const float weight = power_of_e(s[t + i] - top);
            sum[i] += weight;
            s[t + i] = weight * units[t + i];
        }
    for (int t = end; t < KEYS; t++) s[t] = 0; /* whatever the unit of what is not seen */
    *largest = top;
    *total = total_of(load(sum));
}

/* Adds the values [count, size], weighted by s[queries, KEYS], up: to [queries, size + 2]. */
INLINED void add_values(const float *s, const float *values, int count, float *to, const int queries,
                        const int size) {
    Floats sum[queries][size / LANES];
    memset(sum, 0, sizeof sum);
    for (int t = 0; t < count; t++)
        for (int i = 0; i < size / LANES; i++) {
            const Floats value = load(values + t * size + i * LANES);
            for (int n = 0; n < queries; n++) sum[n][i] = add_product(sum[n][i], spread(s[n * KEYS + t]), value);
        }
    for (int n = 0; n < queries; n++) memcpy(to + n * (size + 2), sum[n], sizeof sum[n]);
}

INLINED void add_bytes(const float *s, const int8_t *values, const int32_t *slot, int count, float *to,
                       const int queries, const int size) {
    Floats sum[queries][size / LANES];
    memset(sum, 0, sizeof sum);
    for (int t = 0; t < count; t++)
        for (int i = 0; i < size / LANES; i++) {
            const Floats value = load_bytes(values + (long)slot[t] * STRIDE(size) + i * LANES);
            for (int n = 0; n < queries; n++) sum[n][i] = add_product(sum[n][i], spread(s[n * KEYS + t]), value);
        }
    for (int n = 0; n < queries; n++) memcpy(to + n * (size + 2), sum[n], sizeof sum[n]);
}

/* One block: `count` keys from `from` on, of which query n sees those before `ends[n / group]`; to `to`
 * [queries, size + 2]. For many queries, */
INLINED void block_of_many(
    const Attention *a, int head, int from, int count, const int32_t *ends, float *to, const int size) {
    const int8_t *keys = a->cache + ((long)head * a->capacity + from) * STRIDE(size);
    const int8_t *values = keys + (long)a->h->kv_heads * a->capacity * STRIDE(size);
    const int at_once = LANES == 16 && size <= 64 ? BATCH : LANES == 16 && size <= 128 ? BATCH / 2 : 1; /* sums that
        fit into registers */
    Ints turned[KEYS / LANES][WIDTH(size) / 4]; /* four elements of each key beside the same of the next */
    float wide[KEYS * size], s[BATCH * KEYS], key_units[KEYS], value_units[KEYS];
    for (int t = 0; t < KEYS; t++) {
        const long at = (long)(t < count ? t : count - 1) * STRIDE(size);
        for (int i = 0; i < WIDTH(size) / 4; i += LANES)
            memcpy(&turned[t / LANES][i + t % LANES], keys + at + i * 4, sizeof **turned);
        for (int i = 0; i < size; i += LANES) {
            const Floats value = load_bytes(values + at + i);
            memcpy(wide + t * size + i, &value, sizeof value);
        }
        key_units[t] = unit_of(keys + at, size);
        value_units[t] = unit_of(values + at, size);
    }
    for (int t = 0; t < KEYS / LANES; t++)
        for (int i = 0; i < WIDTH(size) / 4; i += LANES) transpose(turned[t] + i);
    for (int first = 0; first < a->queries; first += BATCH) {
        const int some = a->queries - first < BATCH ? a->queries - first : BATCH;
        const float *unit = a->unit + (long)head * a->queries + first;
        int32_t even[BATCH][WIDTH(size) / 4], odd[BATCH][WIDTH(size) / 4]; /* of four elements the first and
            the third, the second and the fourth */
        for (int n = 0; n < BATCH; n++) {
            uint32_t q[WIDTH(size) / 2];
            memcpy(q, a->q + ((long)head * a->queries + first + (n < some ? n : 0)) * WIDTH(size), sizeof q);
            for (int i = 0; i < WIDTH(size) / 4; i++) {
                even[n][i] = (int32_t)((q[2 * i] & 0xffff) | q[2 * i + 1] << 16);
                odd[n][i] = (int32_t)(q[2 * i] >> 16 | (q[2 * i + 1] & 0xffff0000));
            }
        }
        for (int t = 0; t < KEYS; t += LANES) {
            Ints sum[BATCH] = {{0}};
            for (int i = 0; i < WIDTH(size) / 4; i++) {
                const Shorts four = (Shorts)turned[t / LANES][i];
                for (int n = 0; n < BATCH; n++) {
                    sum[n] = add_pairs(sum[n], four << 8 >> 8, (Shorts)((Ints){0} + even[n][i]));
                    sum[n] = add_pairs(sum[n], four >> 8, (Shorts)((Ints){0} + odd[n][i]));
                }
            }
            for (int n = 0; n < some; n++) {
                const Floats scores = __builtin_convertvector(sum[n], Floats) * (load(key_units + t) * unit[n]);
                memcpy(s + n * KEYS + t, &scores, sizeof scores);
            }
        }
        float *own = to + (long)first * (size + 2);
        for (int n = 0; n < some; n++)
            to_weights(s + n * KEYS, ends[(first + n) / a->group], value_units, own + n * (size + 2) + size,
                       own + n * (size + 2) + size + 1);
        int n = 0;
        for (; n + at_once <= some; n += at_once)
            add_values(s + n * KEYS, wide, count, own + n * (size + 2), at_once, size);
        for (; n < some; n++) add_values(s + n * KEYS, wide, count, own + n * (size + 2), 1, size);
    }
}

/* and for few, from `first` on, where the keys are in `slot[...]`. */
INLINED void block_of_few(
    const Attention *a, int head, int first, int queries, const int32_t *slot, int count, const int32_t *ends,
    float *to, const int size) {
    const int8_t *keys = a->cache + (long)head * a->capacity * STRIDE(size);
    const int8_t *values = keys + (long)a->h->kv_heads * a->capacity * STRIDE(size);
    const int16_t *q = a->q + ((long)head * a->queries + first) * WIDTH(size);
    const float *unit = a->unit + (long)head * a->queries + first;
    float s[MOST_GROUP * KEYS], value_units[KEYS] = {0};
    for (int t = 0; t < count; t += LANES) {
        const int8_t *key[LANES];
        float key_units[LANES];
        for (int k = 0; k < LANES; k++) {
            const int at = t + k < count ? t + k : t;
            key[k] = keys + (long)slot[at] * STRIDE(size);
            key_units[k] = unit_of(key[k], size);
            value_units[at] = unit_of(values + (long)slot[at] * STRIDE(size), size);
        }
        for (int n = 0; n < queries; n++) {
            Ints sum[LANES] = {{0}};
            for (int i = 0; i < WIDTH(size); i += TWICE) {
                Shorts query;
                memcpy(&query, q + n * WIDTH(size) + i, sizeof query);
                for (int k = 0; k < LANES; k++) sum[k] = add_pairs(sum[k], load_shorts(key[k] + i), query);
            }
            const Floats scores = __builtin_convertvector(totals_of(sum), Floats) * (load(key_units) * unit[n]);
            memcpy(s + n * KEYS + t, &scores, sizeof scores);
        }
    }
    for (int n = 0; n < queries; n++)
        to_weights(s + n * KEYS, ends[n / a->group] < count ? ends[n / a->group] : count, value_units,
                   to + n * (size + 2) + size, to + n * (size + 2) + size + 1);
    for (int n = 0; n < queries;) {
        const int left = LANES == 16 ? queries - n : 1; /* so that sums fit into registers */
        const int some = left >= 4 && size <= 64 ? 4 : left >= 3 && size <= 128 ? 3 : 1;
        float *own = to + n * (size + 2);
        if (some == 4) add_bytes(s + n * KEYS, values, slot, count, own, 4, size);
        else if (some == 3) add_bytes(s + n * KEYS, values, slot, count, own, 3, size);
        else add_bytes(s + n * KEYS, values, slot, count, own, 1, size);
        n += some;
    }
}

INLINED void blocks_of(const Attention *a, int part, const int size) {
    const int head = part % a->h->kv_heads, number = part / a->h->kv_heads;
    const long step = (long)a->queries * (size + 2);
    float *sums = a->sums + head * a->blocks * step;
    int32_t slot[KEYS], ends[TOGETHER];
    if (number < a->shared) { /* a block of the line, for all rows */
        const int from = number * KEYS;
        int count = 0;
        for (int row = 0; row < a->rows; row++) {
            ends[row] = a->slots ? KEYS : a->ends[row] - from;
            count = ends[row] > count ? ends[row] : count;
        }
        count = count < KEYS ? count : KEYS;
        for (int t = 0; t < count; t++) slot[t] = from + t;
        if (a->queries <= FEW) block_of_few(a, head, 0, a->queries, slot, count, ends, sums + number * step, size);
        else block_of_many(a, head, from, count, ends, sums + number * step, size);
        return;
    }
    /* What one row sees behind that. */
    const int row = number - a->shared, first = row * a->group;
    const int32_t *own = a->slots + (long)row * a->longest;
    for (int block = a->shared; block < a->blocks; block++) {
        const int from = block * KEYS;
        int count = a->ends[row] - from;
        count = count < 0 ? 0 : count < KEYS ? count : KEYS;
        for (int t = 0; t < count; t++) slot[t] = from + t < a->common ? from + t : own[from + t - a->common];
        block_of_few(a, head, first, a->group, slot, count, &count, sums + block * step + first * (size + 2), size);
    }
}

static void blocks_part(void *argument, int part) {
    const Attention *a = argument;
    switch (a->h->size) { /* known when this is compiled, so that what is summed stays in registers */
    case 64: blocks_of(a, part, 64); break;
    case 128: blocks_of(a, part, 128); break;
    default: blocks_of(a, part, a->h->size); /* a multiple of LANES */
    }
}

/* A head of a row, through its norm where there is one and turned by its place in the text. */
static void turn(const float *x, const float *norm, const Heads *h, const float *restrict cos,
                 const float *restrict sin, float *restrict out) {
    const int half = h->size / 2;
    float normal[h->size];
    if (norm) normalize(x, norm, h->size, h->eps, normal), x = normal;
    for (int i = 0; i < half; i++) {
        out[i] = x[i] * cos[i] + x[i + half] * sin[i];
        out[i + half] = x[i + half] * cos[i + half] + x[i] * sin[i + half];
    }
}

static void keep(const float *x, int size, int8_t *to) {
    int16_t whole[WIDTH(size)];
    memset(whole, 0, sizeof whole);
    const float unit = quantize(x, size, 127, whole);
    for (int i = 0; i < WIDTH(size); i++) to[i] = (int8_t)whole[i];
    memcpy(to + WIDTH(size), &unit, sizeof unit);
}

static void keep_part(void *argument, int row) {
    const Attention *a = argument;
    const Heads *h = a->h;
    const int size = h->size;
    const float *x = a->qkv + (long)row * (h->heads + 2 * h->kv_heads) * size + (long)h->heads * size;
    float turned[size];
    for (int n = 0; n < 2 * h->kv_heads; n++, x += size) {
        const int is_key = n < h->kv_heads;
        if (is_key) turn(x, h->k_norm, h, a->cos + (long)row * size, a->sin + (long)row * size, turned);
        keep(is_key ? turned : x, size, a->cache + ((long)n * a->capacity + a->past + row) * STRIDE(size));
    }
}

static void ask_part(void *argument, int row) {
    const Attention *a = argument;
    const Heads *h = a->h;
    const int size = h->size;
    const float *x = a->qkv + (long)row * (h->heads + 2 * h->kv_heads) * size;
    const float scale = 1.0f / __builtin_sqrtf((float)size);
    const int most = INT32_MAX / (127 * size); /* whole: what is rounded to it must not exceed it */
    float turned[size];
    for (int n = 0; n < h->heads; n++, x += size) {
        const long query = (long)(n / a->group) * a->queries + row * a->group + n % a->group;
        turn(x, h->q_norm, h, a->cos + (long)row * size, a->sin + (long)row * size, turned);
        memset(a->q + query * WIDTH(size), 0, WIDTH(size) * sizeof(int16_t));
        const float limit = (float)(most < INT16_MAX ? most : INT16_MAX);
        a->unit[query] = scale * quantize(turned, size, limit, a->q + query * WIDTH(size));
    }
}

/* Puts the blocks of a row together. */
static void join_part(void *argument, int row) {
    const Attention *a = argument;
    const int size = a->h->size, own = (a->ends[row] + KEYS - 1) / KEYS;
    const long step = (long)a->queries * (size + 2);
    for (int n = 0; n < a->h->heads; n++) {
        const int query = row * a->group + n % a->group;
        const float *part = a->sums + n / a->group * a->blocks * step + (long)query * (size + 2);
        float largest = -3e38f, total = 0, sum[size];
        for (int b = 0; b < own; b++) largest = part[b * step + size] > largest ? part[b * step + size] : largest;
        memset(sum, 0, sizeof sum);
        for (int b = 0; b < own; b++, part += step) {
            const float weight = power_of_e(part[size] - largest);
            total += weight * part[size + 1];
            for (int i = 0; i < size; i++) sum[i] += weight * part[i];
        }
        float *to = a->out + ((long)row * a->h->heads + n) * size;
        for (int i = 0; i < size; i++) to[i] = sum[i] / total;
    }
}

/* Puts the keys and values of qkv [rows, heads + 2 * kv_heads, size] into the cache from slot `past`
 * on; out [rows, heads * size] is the attention of each row over the first `ends[row]` tokens of its
 * text. These are in slots of the same number up to `common`, and from there on as well if `slots` is
 * NULL; otherwise the rest of them is in slots[row, 0 ... longest - 1]. `cos` and `sin` are
 * [rows, size]; the size of a head is a multiple of 16, and not more than MOST_GROUP of them share a
 * key head. Returns 1 where there is no memory. */
int attend(const Heads *h, const float *qkv, const float *cos, const float *sin, int8_t *cache, int capacity,
           int all_rows, int past, int common, const int32_t *slots, int longest, const int32_t *ends, float *out) {
    const int size = h->size, group = h->heads / h->kv_heads;
    const int most = (all_rows < TOGETHER ? all_rows : TOGETHER) * group;
    int last = 0;
    for (int row = 0; row < all_rows; row++) last = ends[row] > last ? ends[row] : last;
    const long of_unit = (long)h->kv_heads * most, of_sums = of_unit * ((last + KEYS - 1) / KEYS) * (size + 2);
    float *sums = malloc(sizeof(float) * (of_sums + of_unit) + sizeof(int16_t) * of_unit * WIDTH(size));
    if (!sums) return 1;
    float *unit = sums + of_sums;
    Attention a = {.h = h, .qkv = qkv, .cos = cos, .sin = sin, .cache = cache, .capacity = capacity, .past = past,
                   .common = common, .slots = slots, .longest = longest, .ends = ends, .group = group, .out = out,
                   .sums = sums, .unit = unit, .q = (int16_t *)(unit + of_unit)};
    pthread_mutex_lock(&pool.caller);
    share_rows(keep_part, &a, all_rows);
    for (int first = 0; first < all_rows; first += TOGETHER) {
        a.rows = all_rows - first < TOGETHER ? all_rows - first : TOGETHER;
        a.queries = a.rows * group;
        last = 0;
        for (int row = 0; row < a.rows; row++) last = a.ends[row] > last ? a.ends[row] : last;
        a.blocks = (last + KEYS - 1) / KEYS;
        a.shared = slots ? common / KEYS : a.blocks;
        share_rows(ask_part, &a, a.rows);
        share(blocks_part, &a, h->kv_heads * (a.shared + (slots ? a.rows : 0)));
        share_rows(join_part, &a, a.rows);
        a.qkv += (long)a.rows * (h->heads + 2 * h->kv_heads) * size;
        a.cos += (long)a.rows * size;
        a.sin += (long)a.rows * size;
        a.ends += a.rows;
        a.out += (long)a.rows * h->heads * size;
        if (slots) a.slots += (long)a.rows * longest;
    }
    pthread_mutex_unlock(&pool.caller);
    free(sums);
    return 0;
}
