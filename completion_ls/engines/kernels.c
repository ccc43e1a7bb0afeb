/* The products and the attention of a pass of few tokens.
 *
 * Such a pass is bound by memory: every weight is read once, so what counts is that weights and
 * keys stay as small as they are stored until they are in registers, and that nothing happens
 * between the reads. Everything is written so that a compiler makes vector code of it for the
 * machine at hand. A row's result does not depend on which rows are computed beside it, nor on the
 * number of threads.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define REST() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define REST() __asm__ volatile("yield")
#else
#define REST() ((void)0)
#endif

/* ---- Threads. The caller works as well and never waits for a helper that has not begun: on a busy
 * machine a helper that does not get a core in time simply finds nothing left to do. ---- */

typedef void (*Work)(void *argument, int part, int worker);

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

enum { PATIENCE = 2000 }; /* pauses before a helper goes to sleep: some tens of microseconds */

static int is_left(uint64_t ticket) { return (uint32_t)ticket < ticket >> 32; }

/* A helper that comes late, with its mind on work that is done, finds the parts of the next one or
 * none: which part it has, and that there is one, is told by the same read that takes it. */
static int take_part(int worker) {
    if (!is_left(atomic_load(&pool.ticket))) return 0;
    uint64_t mine = atomic_fetch_add(&pool.ticket, 1);
    if (!is_left(mine)) return 0;
    pool.work(pool.argument, (int)(uint32_t)mine, worker);
    atomic_fetch_add(&pool.done, 1);
    return 1;
}

static int is_wanted(int number) { return number < atomic_load(&pool.wanted); }

static void *help(void *argument) {
    const int number = (int)(intptr_t)argument;
    for (int idle = 0;; idle++) {
        if (is_wanted(number) && take_part(number + 1)) {
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
        for (int part = 0; part < parts; part++) work(argument, part, 0);
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
    while (take_part(0)) {}
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
    atomic_store(&pool.asleep, 0);
    atomic_store(&pool.wanted, 0);
    pool.helpers = 0;
}

/* Use so many threads from now on, the caller included. Returns how many there are. */
int use_threads(int threads) {
    static int prepared;
    pthread_mutex_lock(&pool.caller);
    if (!prepared) prepared = !pthread_atfork(NULL, NULL, start_anew);
    for (; pool.helpers < threads - 1; pool.helpers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, (void *)(intptr_t)pool.helpers)) break;
        pthread_detach(thread);
    }
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

static inline float widen(uint16_t bits) { /* bfloat16 */
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static inline uint16_t narrow(float value) { /* to the nearest, of two the even one */
    uint32_t word;
    memcpy(&word, &value, 4);
    if ((word & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

static inline float power_of_e(float x) { /* for x <= 88, to the last bits of a float */
    float n = __builtin_rintf(x * 1.44269504f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)(n < -126.0f ? -126.0f : n) + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return x < -87.0f ? 0.0f : p * scale;
}

/* Sixteen lanes; where the machine has shorter vectors the compiler takes several. */
enum { LANES = 16 };
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));
typedef float Half __attribute__((vector_size(2 * LANES)));
typedef float Quarter __attribute__((vector_size(LANES)));

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

static inline float total_of(Floats values) {
    Half half[2];
    Quarter quarter[2];
    memcpy(half, &values, sizeof values);
    half[0] += half[1];
    memcpy(quarter, half, sizeof quarter);
    quarter[0] += quarter[1];
    return (quarter[0][0] + quarter[0][2]) + (quarter[0][1] + quarter[0][3]);
}

static inline float dot(const float *a, const float *b, int n) {
    Floats sum = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES) sum += load(a + i) * load(b + i);
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
enum { GROUP = 32, TILE = 4 };

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
    const float *x;   /* [rows, inputs] */
    const int16_t *v; /* x in units of `unit` */
    const float *unit; /* [rows] */
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

#define WEIGHT_ROWS(F) F(0) F(1) F(2) F(3)
#define SUMS_OF(i) int32_t s##i##0 = 0, s##i##1 = 0, s##i##2 = 0, s##i##3 = 0;
#define ADD_ALL(i) s##i##0 += a##i * b0; s##i##1 += a##i * b1; s##i##2 += a##i * b2; s##i##3 += a##i * b3;
#define ADD_ONE(i) s##i##0 += a##i * b0;
#define LOAD(i) int32_t a##i = w##i[k];
#define STORE_ALL(i) s[i][0] = s##i##0; s[i][1] = s##i##1; s[i][2] = s##i##2; s[i][3] = s##i##3;
#define STORE_ONE(i) s[i][0] = s##i##0;

/* Four rows of weights by four rows of inputs: each weight that is read is used four times. */
static void four_by_four(const int8_t *restrict w0, int n, const int16_t *restrict b, int32_t s[TILE][TILE]) {
    const int8_t *restrict w1 = w0 + n, *restrict w2 = w1 + n, *restrict w3 = w2 + n;
    const int16_t *restrict v1 = b + n, *restrict v2 = v1 + n, *restrict v3 = v2 + n;
    WEIGHT_ROWS(SUMS_OF)
    for (int k = 0; k < n; k++) {
        WEIGHT_ROWS(LOAD)
        int32_t b0 = b[k], b1 = v1[k], b2 = v2[k], b3 = v3[k];
        WEIGHT_ROWS(ADD_ALL)
    }
    WEIGHT_ROWS(STORE_ALL)
}

static void four_by_one(const int8_t *restrict w0, int n, const int16_t *restrict b, int32_t s[TILE][TILE]) {
    const int8_t *restrict w1 = w0 + n, *restrict w2 = w1 + n, *restrict w3 = w2 + n;
    int32_t s00 = 0, s10 = 0, s20 = 0, s30 = 0;
    for (int k = 0; k < n; k++) {
        WEIGHT_ROWS(LOAD)
        int32_t b0 = b[k];
        WEIGHT_ROWS(ADD_ONE)
    }
    WEIGHT_ROWS(STORE_ONE)
}

static void one_by_one(const int8_t *restrict w, int n, const int16_t *restrict b, int32_t *sum) {
    int32_t total = 0;
    for (int k = 0; k < n; k++) total += (int32_t)w[k] * (int32_t)b[k];
    *sum = total;
}

static inline void put(const Product *p, int row, int output, float y) {
    __asm__("" : "+m"(y)); /* rounded by itself, not fused with what is added: as torch does it */
    if (p->layer->bias) y += p->layer->bias[output];
    float *to = p->out + (long)row * p->layer->outputs + output;
    *to = p->add ? *to + y : y;
}

static void int8_rows(const Product *p, int from, int to) {
    const Linear *l = p->layer;
    const int n = l->inputs;
    int32_t s[TILE][TILE];
    int j = from;
    for (; j + TILE <= to; j += TILE) {
        const int8_t *w = (const int8_t *)l->weight + (long)j * n;
        for (int row = 0; row < p->rows;) {
            int count = p->rows - row >= TILE ? TILE : 1;
            const int16_t *v = p->v + (long)row * n;
            if (count == TILE) four_by_four(w, n, v, s);
            else four_by_one(w, n, v, s);
            for (int i = 0; i < TILE; i++)
                for (int c = 0; c < count; c++)
                    put(p, row + c, j + i, (float)s[i][c] * (p->unit[row + c] * l->scale[j + i]));
            row += count;
        }
    }
    for (; j < to; j++)
        for (int row = 0; row < p->rows; row++) {
            one_by_one((const int8_t *)l->weight + (long)j * n, n, p->v + (long)row * n, &s[0][0]);
            put(p, row, j, (float)s[0][0] * (p->unit[row] * l->scale[j]));
        }
}

enum { WIDE_TILE = 8 };

/* Weights that are widened to floats, sixteen at a time, and used for some rows of inputs. */
static inline __attribute__((always_inline)) void float_rows(const Product *p, int j, int row, const int rows,
                                                             const int is_int4) {
    const Linear *l = p->layer;
    const int n = l->inputs;
    const float *x = p->x + (long)row * n;
    Floats sum[WIDE_TILE] = {{0}};
    if (is_int4) {
        const uint8_t *w = (const uint8_t *)l->weight + (long)j * (n / 2);
        const float *pair = l->pairs + (long)j * (n / GROUP) * 2;
        for (int k = 0; k < n; k += GROUP, w += LANES, pair += 2) {
            Bytes bytes;
            memcpy(&bytes, w, sizeof bytes);
            Words words = __builtin_convertvector(__builtin_convertvector(bytes, Halves), Words);
            const float scale = pair[0], least = pair[1];
            Floats first = __builtin_convertvector((Ints)(words & 15), Floats) * scale + least;
            Floats second = __builtin_convertvector((Ints)(words >> 4), Floats) * scale + least;
            for (int r = 0; r < rows; r++) {
                sum[r] += first * load(x + r * n + k);
                sum[r] += second * load(x + r * n + k + LANES);
            }
        }
    } else {
        const uint16_t *w = (const uint16_t *)l->weight + (long)j * n;
        for (int k = 0; k < n; k += LANES) {
            Floats weight = load_bf16(w + k);
            for (int r = 0; r < rows; r++) sum[r] += weight * load(x + r * n + k);
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

static void product_part(void *argument, int part, int worker) {
    (void)worker;
    const Product *p = argument;
    const int tiles = (p->layer->outputs + TILE - 1) / TILE;
    const int from = TILE * (int)((long)tiles * part / p->parts);
    int to = TILE * (int)((long)tiles * (part + 1) / p->parts);
    to = to < p->layer->outputs ? to : p->layer->outputs;
    if (p->layer->kind == INT8) int8_rows(p, from, to);
    else wide_rows(p, from, to);
}

/* One row of a layer's inputs: x through the RMS norm where there is one; or, if it is `gated`
 * [2 * n], silu(its first half) * its second. */
static void make_input(const float *restrict x, int n, const float *norm, float eps, int gated, float *restrict out) {
    if (gated) {
        for (int i = 0; i < n; i++) {
            const float away = -x[i] > 80.0f ? 80.0f : -x[i];
            out[i] = x[i] / (1.0f + power_of_e(away)) * x[n + i];
        }
    } else if (norm) {
        normalize(x, norm, n, eps, out);
    } else {
        memcpy(out, x, n * sizeof(float));
    }
}

/* out [rows, outputs] = layer(inputs made of x), or added to it. For few rows. Returns 1 where there is
 * no memory, as `attend`. */
int linear(const Linear *layer, const float *x, int rows, const float *norm, float eps, int gated,
            float *out, int add) {
    const int n = layer->inputs;
    float *input = malloc((size_t)rows * ((size_t)n * (sizeof(float) + sizeof(int16_t)) + sizeof(float)));
    if (!input) return 1;
    float *unit = input + (long)rows * n;
    int16_t *v = (int16_t *)(unit + rows);
    for (int row = 0; row < rows; row++) {
        float *to = input + (long)row * n;
        make_input(x + (long)row * (gated ? 2 * n : n), n, norm, eps, gated, to);
        if (layer->kind == INT8) unit[row] = quantize(to, n, layer->limit, v + (long)row * n);
    }
    pthread_mutex_lock(&pool.caller);
    Product product = {layer, input, v, unit, out, rows, add, 4 * (atomic_load(&pool.wanted) + 1)};
    share(product_part, &product, product.parts);
    pthread_mutex_unlock(&pool.caller);
    free(input);
    return 0;
}

/* INT8 for many rows: the product itself is left to a library; this is what comes before and after. */

typedef struct {
    const Linear *layer;
    const float *x, *norm;
    float eps;
    int rows, gated, add;
    float *unit, *out;
    int8_t *bytes;
    const int32_t *sums;
} Wide;

enum { ROWS = 8 }; /* in one part */

static void before_part(void *argument, int part, int worker) {
    const Wide *w = argument;
    const int n = w->layer->inputs, end = (part + 1) * ROWS < w->rows ? (part + 1) * ROWS : w->rows;
    float *input = malloc(n * (sizeof(float) + sizeof(int16_t)));
    int16_t *restrict v = (int16_t *)(input + n);
    (void)worker;
    for (int row = part * ROWS; row < end; row++) {
        make_input(w->x + (long)row * (w->gated ? 2 * n : n), n, w->norm, w->eps, w->gated, input);
        w->unit[row] = quantize(input, n, w->layer->limit, v);
        int8_t *restrict high = w->bytes + (long)row * n, *restrict low = high + (long)w->rows * n;
        for (int i = 0; i < n; i++) {
            high[i] = (int8_t)((v[i] + 128) >> 8);
            low[i] = (int8_t)v[i];
        }
    }
    free(input);
}

/* The inputs' whole numbers, as high and low bytes [2, rows, inputs], and their unit [rows]. */
void before(const Linear *layer, const float *x, int rows, const float *norm, float eps, int gated,
            int8_t *bytes, float *unit) {
    Wide w = {layer, x, norm, eps, rows, gated, 0, unit, NULL, bytes, NULL};
    pthread_mutex_lock(&pool.caller);
    share(before_part, &w, (rows + ROWS - 1) / ROWS);
    pthread_mutex_unlock(&pool.caller);
}

static void after_part(void *argument, int part, int worker) {
    const Wide *w = argument;
    const int n = w->layer->outputs, end = (part + 1) * ROWS < w->rows ? (part + 1) * ROWS : w->rows;
    float *restrict y = malloc(n * sizeof(float));
    (void)worker;
    for (int row = part * ROWS; row < end; row++) {
        const int32_t *restrict high = w->sums + (long)row * n, *restrict low = high + (long)w->rows * n;
        const float *restrict scale = w->layer->scale, *restrict bias = w->layer->bias, unit = w->unit[row];
        float *restrict to = w->out + (long)row * n;
        for (int i = 0; i < n; i++)
            y[i] = (float)(int32_t)((uint32_t)high[i] * 256 + (uint32_t)low[i]) * (unit * scale[i]);
        if (bias) for (int i = 0; i < n; i++) y[i] += bias[i];
        if (w->add) for (int i = 0; i < n; i++) to[i] += y[i];
        else memcpy(to, y, n * sizeof(float));
    }
    free(y);
}

/* out [rows, outputs], or added to it, from the sums [2, rows, outputs] of both bytes' products. */
void after(const Linear *layer, const int32_t *sums, const float *unit, int rows, float *out, int add) {
    Wide w = {layer, NULL, NULL, 0, rows, 0, add, (float *)unit, out, NULL, sums};
    pthread_mutex_lock(&pool.caller);
    share(after_part, &w, (rows + ROWS - 1) / ROWS);
    pthread_mutex_unlock(&pool.caller);
}

/* ---- Attention ----
 *
 * The keys that a row sees are taken in the order of the text, in blocks that begin at fixed places
 * of it, wherever they are in the cache: so its result is the same to the bit in whatever pass. */

enum { KEYS = 128, AT_ONCE = 4, FEW = 8, TOGETHER = 32 }; /* keys in a block, in
    registers; queries that are taken one by one; rows */

typedef struct {
    int32_t heads, kv_heads, size, capacity; /* of the cache, in slots */
    float eps;
    const float *q_norm, *k_norm; /* [size] or NULL */
} Heads;

typedef struct {
    const Heads *h;
    const float *q;        /* [kv_heads, size, lanes]: for each key head, its queries side by side */
    const uint16_t *cache; /* [2, kv_heads, capacity, size] */
    const int32_t *slots, *ends;
    float *scores;         /* for each worker [KEYS, lanes] */
    float *sums;           /* [kv_heads, blocks, (size + 2) * lanes]: values, largest score, weights */
    int rows, group, lanes, common, shared, blocks, longest;
} Attention;

/* q.k is summed in sixteen lanes and these in a tree, as `dot` does it, also where the lanes of a
 * register are sixteen queries. */
static inline __attribute__((always_inline)) void scores_side_by_side(
    const float *q, int stride, const float *wide, Floats result[AT_ONCE], const int size) {
    static const int leaves[4] = {0, 8, 4, 12}, roots[4] = {0, 2, 1, 3};
    Floats first[AT_ONCE], second[AT_ONCE];
    for (int root = 0; root < 4; root++) {
        Floats left[AT_ONCE], right[AT_ONCE];
        for (int leaf = 0; leaf < 4; leaf++) {
            Floats sum[AT_ONCE] = {{0}};
            for (int i = roots[root] + leaves[leaf]; i < size; i += LANES) {
                const Floats query = load(q + (long)i * stride);
                for (int k = 0; k < AT_ONCE; k++) sum[k] += wide[k * size + i] * query;
            }
            for (int k = 0; k < AT_ONCE; k++) {
                if (leaf == 0) left[k] = sum[k];
                else if (leaf == 1) left[k] += sum[k];
                else if (leaf == 2) right[k] = sum[k];
                else right[k] += sum[k];
            }
        }
        for (int k = 0; k < AT_ONCE; k++) {
            const Floats both = left[k] + right[k];
            if (root == 0) first[k] = both;
            else if (root == 1) first[k] += both;
            else if (root == 2) second[k] = both;
            else second[k] += both;
        }
    }
    for (int k = 0; k < AT_ONCE; k++) result[k] = first[k] + second[k];
}

/* One block: `count` keys at `slot[...]`, of which the query of a row sees those before `ends[row]`
 * (NULL: all). The same to the bit in both ways: */

/* for many queries, which are the lanes; */
static inline __attribute__((always_inline)) void block_of_many(
    const Attention *a, int head, const float *q, int stride, int queries, int lanes, const int32_t *slot,
    int count, const int32_t *ends, float *scores, float *sums, const int size) {
    const uint16_t *keys = a->cache + (long)head * a->h->capacity * size;
    const uint16_t *values = keys + (long)a->h->kv_heads * a->h->capacity * size;
    float *restrict largest = sums + size * lanes, *restrict total = largest + lanes;
    float wide[AT_ONCE * size];
    memset(sums, 0, sizeof(float) * (size + 2) * lanes);
    for (int n = 0; n < lanes; n++) largest[n] = -3e38f; /* not infinite: it may see nothing here */
    for (int t = 0; t < count; t += AT_ONCE) {
        const int some = count - t < AT_ONCE ? count - t : AT_ONCE;
        memset(wide, 0, sizeof wide);
        for (int k = 0; k < some; k++)
            for (int i = 0; i < size; i++) wide[k * size + i] = widen(keys[(long)slot[t + k] * size + i]);
        for (int lane = 0; lane < lanes; lane += LANES) {
            Floats sum[AT_ONCE];
            scores_side_by_side(q + lane, stride, wide, sum, size);
            for (int k = 0; k < some; k++) memcpy(scores + (long)(t + k) * lanes + lane, &sum[k], sizeof sum[k]);
        }
    }
    if (ends)
        for (int n = 0; n < queries; n++)
            for (int t = ends[n / a->group] < 0 ? 0 : ends[n / a->group]; t < count; t++)
                scores[(long)t * lanes + n] = -__builtin_inff();
    for (int t = 0; t < count; t++) {
        const float *restrict s = scores + (long)t * lanes;
        for (int n = 0; n < lanes; n++) largest[n] = s[n] > largest[n] ? s[n] : largest[n];
    }
    for (int t = 0; t < count; t++) {
        float *restrict s = scores + (long)t * lanes;
        for (int n = 0; n < lanes; n++) {
            s[n] = power_of_e(s[n] - largest[n]);
            total[n] += s[n];
        }
    }
    for (int t = 0; t < count; t += AT_ONCE) {
        const int some = count - t < AT_ONCE ? count - t : AT_ONCE;
        for (int k = 0; k < some; k++)
            for (int i = 0; i < size; i++) wide[k * size + i] = widen(values[(long)slot[t + k] * size + i]);
        for (int n = 0; n < queries; n++) {
            /* What it does not see is left out, not taken zero times: it may not be finite. */
            const int own = ends && ends[n / a->group] - t < some ? ends[n / a->group] - t : some;
            Floats sum[size / LANES];
            memcpy(sum, sums + (long)n * size, sizeof sum);
            for (int k = 0; k < own; k++)
                for (int i = 0; i < size / LANES; i++)
                    sum[i] += scores[(long)(t + k) * lanes + n] * load(wide + k * size + i * LANES);
            memcpy(sums + (long)n * size, sum, sizeof sum);
        }
    }
}

/* and for few, one by one: `q` is [queries, size] here. */
static inline __attribute__((always_inline)) void block_of_few(
    const Attention *a, int head, const float *q, int queries, int lanes, const int32_t *slot, int count,
    const int32_t *ends, float *scores, float *sums, const int size) {
    const uint16_t *keys = a->cache + (long)head * a->h->capacity * size;
    const uint16_t *values = keys + (long)a->h->kv_heads * a->h->capacity * size;
    for (int t = 0; t < count; t++) {
        const uint16_t *key = keys + (long)slot[t] * size, *value = values + (long)slot[t] * size;
        Floats wide[size / LANES];
        for (int i = 0; i < size; i += 2 * LANES) __builtin_prefetch(value + i); /* its turn comes soon */
        for (int i = 0; i < size / LANES; i++) wide[i] = load_bf16(key + i * LANES);
        for (int n = 0; n < queries; n++) {
            Floats sum = {0};
            for (int i = 0; i < size / LANES; i++) sum += wide[i] * load(q + n * size + i * LANES);
            scores[n * KEYS + t] = total_of(sum);
        }
    }
    for (int n = 0; n < queries; n++) {
        float *restrict s = scores + n * KEYS, largest = -3e38f, total = 0;
        const int end = ends && ends[n / a->group] < count ? ends[n / a->group] : count;
        for (int t = end < 0 ? 0 : end; t < count; t++) s[t] = -__builtin_inff();
        for (int t = 0; t < count; t++) largest = s[t] > largest ? s[t] : largest;
        for (int t = 0; t < count; t++) s[t] = power_of_e(s[t] - largest);
        for (int t = 0; t < count; t++) total += s[t];
        sums[size * lanes + n] = largest;
        sums[(size + 1) * lanes + n] = total;
    }
    for (int n = 0; n < queries; n++) {
        Floats sum[size / LANES];
        memset(sum, 0, sizeof sum);
        const int end = ends && ends[n / a->group] < count ? ends[n / a->group] : count;
        for (int t = 0; t < end; t++)
            for (int i = 0; i < size / LANES; i++)
                sum[i] += scores[n * KEYS + t] * load_bf16(values + (long)slot[t] * size + i * LANES);
        memcpy(sums + (long)n * size, sum, sizeof sum);
    }
}

static inline __attribute__((always_inline)) void attention_of(const Attention *a, int part, int worker, const int size) {
    const int head = part % a->h->kv_heads, number = part / a->h->kv_heads;
    const float *q = a->q + (long)head * size * a->lanes;
    float *scores = a->scores + (long)worker * KEYS * a->lanes;
    float *sums = a->sums + (long)head * a->blocks * (size + 2) * a->lanes;
    int32_t slot[KEYS], ends[TOGETHER];
    if (number < a->shared) { /* a block of the line, for all rows */
        const int from = number * KEYS;
        int count = 0, some_end = 0;
        for (int row = 0; row < a->rows; row++) {
            ends[row] = a->slots ? KEYS : a->ends[row] - from;
            count = ends[row] > count ? ends[row] : count;
            some_end |= ends[row] < KEYS;
        }
        count = count < KEYS ? count : KEYS;
        for (int t = 0; t < count; t++) slot[t] = from + t;
        float *to = sums + (long)number * (size + 2) * a->lanes;
        if (a->rows * a->group <= FEW) {
            float own[FEW * size];
            for (int n = 0; n < a->rows * a->group; n++)
                for (int i = 0; i < size; i++) own[n * size + i] = q[(long)i * a->lanes + n];
            block_of_few(a, head, own, a->rows * a->group, a->lanes, slot, count, some_end ? ends : NULL, scores, to, size);
        } else {
            block_of_many(a, head, q, a->lanes, a->rows * a->group, a->lanes, slot, count, some_end ? ends : NULL,
                          scores, to, size);
        }
        return;
    }
    /* What one row sees behind that. */
    const int row = number - a->shared;
    const int32_t *own = a->slots + (long)row * a->longest;
    float side[LANES * size], result[(size + 2) * LANES];
    for (int n = 0; n < a->group; n++)
        for (int i = 0; i < size; i++) side[n * size + i] = q[(long)i * a->lanes + row * a->group + n];
    for (int block = a->shared; block < a->blocks; block++) {
        const int from = block * KEYS;
        int count = a->ends[row] - from;
        count = count < 0 ? 0 : count < KEYS ? count : KEYS;
        for (int t = 0; t < count; t++) slot[t] = from + t < a->common ? from + t : own[from + t - a->common];
        block_of_few(a, head, side, a->group, LANES, slot, count, NULL, scores, result, size);
        float *to = sums + (long)block * (size + 2) * a->lanes;
        for (int n = 0; n < a->group; n++) {
            const int query = row * a->group + n;
            memcpy(to + (long)query * size, result + n * size, size * sizeof(float));
            to[size * a->lanes + query] = result[size * LANES + n];
            to[(size + 1) * a->lanes + query] = result[(size + 1) * LANES + n];
        }
    }
}

static void attention_part(void *argument, int part, int worker) {
    const Attention *a = argument;
    switch (a->h->size) { /* known when this is compiled, so that what is summed stays in registers */
    case 64: attention_of(a, part, worker, 64); break;
    case 128: attention_of(a, part, worker, 128); break;
    default: attention_of(a, part, worker, a->h->size); /* a multiple of LANES */
    }
}

static void turn(const float *restrict x, const float *restrict cos, const float *restrict sin, int size,
                 float *restrict out) { /* rotary embedding, halves swapped */
    for (int i = 0; i < size / 2; i++) {
        out[i] = x[i] * cos[i] + x[i + size / 2] * sin[i];
        out[i + size / 2] = x[i + size / 2] * cos[i + size / 2] + x[i] * sin[i + size / 2];
    }
}

/* Puts the keys and values of qkv [rows, heads + 2 * kv_heads, size] into the cache from slot `past`
 * on; out [rows, heads * size] is the attention of each row over the first `ends[row]` tokens of its
 * text. These are in slots of the same number up to `common`, and from there on as well if `slots` is
 * NULL; otherwise the rest of them is in slots[row, 0 ... longest - 1]. `cos` and `sin` are
 * [rows, size]; the size of a head is a multiple of LANES, and not more than LANES of them share a
 * key head. */
int attend(const Heads *h, const float *qkv, const float *cos, const float *sin, uint16_t *cache, int all_rows,
            int past, int common, const int32_t *slots, int longest, const int32_t *ends, float *out) {
    const int size = h->size, group = h->heads / h->kv_heads, all = h->heads + 2 * h->kv_heads;
    const float scale = 1.0f / __builtin_sqrtf((float)size);
    const int most = all_rows < TOGETHER ? all_rows : TOGETHER;
    const int most_lanes = (most * group + LANES - 1) / LANES * LANES;
    int last = 0;
    pthread_mutex_lock(&pool.caller);
    for (int row = 0; row < all_rows; row++) last = ends[row] > last ? ends[row] : last;
    const int most_blocks = (last + KEYS - 1) / KEYS, workers = pool.helpers + 1;
    const long of_q = (long)h->kv_heads * size * most_lanes, of_scores = (long)workers * KEYS * most_lanes;
    float *q = malloc(sizeof(float) * (of_q + of_scores + (long)h->kv_heads * most_blocks * (size + 2) * most_lanes));
    if (!q) return 1;
    float *scores = q + of_q, *sums = scores + of_scores;
    for (int row = 0; row < all_rows; row++)
        for (int n = h->heads; n < all; n++) {
            const float *x = qkv + ((long)row * all + n) * size;
            float normal[size], turned[size];
            if (n < h->heads + h->kv_heads) {
                if (h->k_norm) normalize(x, h->k_norm, size, h->eps, normal), x = normal;
                turn(x, cos + (long)row * size, sin + (long)row * size, size, turned);
                x = turned;
            }
            uint16_t *to = cache + ((long)(n - h->heads) * h->capacity + past + row) * size;
            for (int i = 0; i < size; i++) to[i] = narrow(x[i]);
        }
    for (int first = 0; first < all_rows; first += TOGETHER) {
        const int rows = all_rows - first < TOGETHER ? all_rows - first : TOGETHER;
        const int lanes = (rows * group + LANES - 1) / LANES * LANES;
        memset(q, 0, of_q * sizeof(float));
        last = 0;
        for (int row = 0; row < rows; row++) {
            last = ends[first + row] > last ? ends[first + row] : last;
            for (int n = 0; n < h->heads; n++) {
                const float *x = qkv + ((long)(first + row) * all + n) * size;
                const long turn_at = (long)(first + row) * size;
                float normal[size], turned[size];
                if (h->q_norm) normalize(x, h->q_norm, size, h->eps, normal), x = normal;
                turn(x, cos + turn_at, sin + turn_at, size, turned);
                float *to = q + (long)(n / group) * size * lanes + row * group + n % group;
                for (int i = 0; i < size; i++) to[(long)i * lanes] = turned[i] * scale;
            }
        }
        const int blocks = (last + KEYS - 1) / KEYS, shared = slots ? common / KEYS : blocks;
        Attention attention = {h, q, cache, slots ? slots + (long)first * longest : NULL, ends + first, scores, sums,
                               rows, group, lanes, common, shared, blocks, longest};
        share(attention_part, &attention, h->kv_heads * (shared + (slots ? rows : 0)));
        for (int head = 0; head < h->kv_heads; head++)
            for (int n = 0; n < rows * group; n++) {
                const float *part = sums + (long)head * blocks * (size + 2) * lanes;
                const long step = (long)(size + 2) * lanes;
                const int own = (ends[first + n / group] + KEYS - 1) / KEYS;
                float largest = -3e38f, total = 0, sum[size];
                for (int b = 0; b < own; b++)
                    largest = part[b * step + size * lanes + n] > largest ? part[b * step + size * lanes + n] : largest;
                memset(sum, 0, sizeof sum);
                for (int b = 0; b < own; b++) {
                    const float weight = power_of_e(part[b * step + size * lanes + n] - largest);
                    const float *values = part + b * step + (long)n * size;
                    total += weight * part[b * step + (size + 1) * lanes + n];
                    for (int i = 0; i < size; i++) sum[i] += weight * values[i];
                }
                float *to = out + ((long)(first + n / group) * h->heads + head * group + n % group) * size;
                for (int i = 0; i < size; i++) to[i] = sum[i] / total;
            }
    }
    pthread_mutex_unlock(&pool.caller);
    free(q);
    return 0;
}
