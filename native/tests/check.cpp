// The kernel against the definition: random calls, every instruction set, any number of threads, forked and concurrent.
//
//     check [--cases N] [--seed S] [--isa portable|avx2|avx512|avx512_bf16] [--forward] [--most MULTIPLICATIONS]
//
// A failure prints the seed of its case; `--seed S --cases 1` runs that case alone.
#include <sys/wait.h>

#include <cstdio>
#include <functional>
#include <thread>

#include "rows_case.hpp"
#include "statistics_case.hpp"

namespace {

const char *NAMES[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};

struct Settings {
    int64_t cases = 200;
    uint64_t seed = 1;
    int64_t isa = -1;
    bool forward_only = false;
    double most = 2e6;
};

// Which weights the dropout of the kernel keeps: with a query of zeros all weights are equal, and with unit vectors as
// values the output is the weights.
reference::Keep keep_of(const Case &drawn) {
    if (drawn.call.dropout == 0) return nullptr;
    rv_call call = drawn.call;
    const int64_t width = std::min<int64_t>(call.k_len, 256);
    auto kept = std::make_shared<std::vector<bool>>(size_t(call.batch * call.heads * call.q_len * call.k_len), true);
    Tensor query(call.dtype, {call.batch, call.heads, call.q_len, call.dim}, Layout{}, 0);
    Tensor key(call.dtype, {call.batch, call.key_heads, call.k_len, call.dim}, Layout{}, 0);
    Tensor out(call.dtype, {call.batch, call.heads, call.q_len, width}, Layout{}, UNWRITTEN);
    call.value_dim = width;
    call.query = query.view;
    call.key = key.view;
    call.out = out.view;
    call.bias = rv_tensor{};
    call.slopes = nullptr;
    call.sinks = nullptr;
    call.table = call.lengths = nullptr;
    for (int64_t first = 0; first < call.k_len; first += width) {
        Tensor units(call.dtype, {call.batch, call.key_heads, call.k_len, width}, Layout{}, 0);
        for (int64_t b = 0; b < call.batch; b++)
            for (int64_t h = 0; h < call.key_heads; h++)
                for (int64_t k = first; k < std::min(first + width, call.k_len); k++) units.set(b, h, k, k - first, 1);
        call.value = units.view;
        if (rv_forward(&call, 1) != RV_OK) fail("the call for the dropout");
        for (int64_t b = 0; b < call.batch; b++)
            for (int64_t h = 0; h < call.heads; h++)
                for (int64_t q = 0; q < call.q_len; q++)
                    for (int64_t k = first; k < std::min(first + width, call.k_len); k++)
                        (*kept)[size_t(((b * call.heads + h) * call.q_len + q) * call.k_len + k)] =
                            out.get(b, h, q, k - first) != 0;
    }
    const int64_t heads = call.heads, q_len = call.q_len, k_len = call.k_len;
    return [=](int64_t b, int64_t h, int64_t q, int64_t k) -> bool {
        return (*kept)[size_t(((b * heads + h) * q_len + q) * k_len + k)];
    };
}

// A bias that is shared by several pairs has the sum of their gradients.
void compare_bias(const Case &drawn, const reference::Numbers &right) {
    const rv_call &call = drawn.call;
    int64_t last = 0;
    const int64_t sizes[4] = {call.batch, call.heads, call.q_len, call.k_len};
    for (int axis = 0; axis < 4; axis++) last += (sizes[axis] - 1) * call.d_bias.stride[axis];
    reference::Numbers sums(last + 1);
    size_t index = 0;
    for (int64_t b = 0; b < call.batch; b++)
        for (int64_t h = 0; h < call.heads; h++)
            for (int64_t q = 0; q < call.q_len; q++)
                for (int64_t k = 0; k < call.k_len; k++, index++)
                    sums.add(reference::at(call.d_bias, b, h, q, k), right.value[index], right.size[index]);
    const int before = failures;
    for (int64_t i = 0; i <= last && failures == before; i++)
        compare_one("d_bias", reference::load(call.d_bias, i), sums.value[size_t(i)], sums.size[size_t(i)],
                    call.d_bias.dtype, call.dtype);
}

void reset(Case &drawn) {
    for (Tensor *tensor : {drawn.out, drawn.lse, drawn.d_query, drawn.d_key, drawn.d_value, drawn.d_sinks})
        if (tensor) tensor->refill(UNWRITTEN);
    if (drawn.d_bias) drawn.d_bias->refill(0);
}

std::vector<std::vector<unsigned char>> everything(const Case &drawn) {
    std::vector<std::vector<unsigned char>> bytes;
    for (Tensor *tensor :
         {drawn.out, drawn.lse, drawn.d_query, drawn.d_key, drawn.d_value, drawn.d_bias, drawn.d_sinks})
        if (tensor) bytes.push_back(tensor->bytes());
    return bytes;
}

void run(Case &drawn, int threads, bool forward_only) {
    reset(drawn);
    if (rv_forward(&drawn.call, threads) != RV_OK) fail("rv_forward refused");
    if (forward_only || drawn.call.table) return;
    if (rv_backward(&drawn.call, threads) != RV_OK) fail("rv_backward refused");
}

void check_statistics(Case &drawn) {
    StatisticsCase statistics(drawn);
    statistics.run(1);
    statistics.judge();
    const auto alone = statistics.everything();
    for (int threads : {2, 3}) {
        statistics.run(threads);
        if (statistics.everything() != alone)
            fail("statistics: " + std::to_string(threads) + " threads give other bits than one");
    }
}

void move(rv_tensor &tensor, int64_t b, int64_t t) {
    if (!tensor.data) return;
    const int64_t offset = b * tensor.stride[0] + t * tensor.stride[2];
    tensor.data = static_cast<char *>(tensor.data) + offset * bytes_of(tensor.dtype);
}

// A query by itself, over no more keys than it hears, must have the bits that it has among the others.
void check_batch_invariant(Case &drawn, int64_t b, int64_t q) {
    rv_call call = drawn.call;
    const int64_t ranges_at = b * call.range_stride[0] + q * call.range_stride[2];
    Tensor out(call.dtype, {1, call.heads, 1, call.value_dim}, Layout{}, UNWRITTEN);
    Tensor lse(drawn.lse->view.dtype, {1, call.heads, 1, 1}, Layout{}, UNWRITTEN);
    call.batch = 1, call.q_len = 1, call.q_start += q;
    call.starts += ranges_at, call.ends += ranges_at;
    move(call.query, b, q);
    move(call.bias, b, q);
    if (call.heard) call.heard += b * call.heard_stride[0];
    if (call.table) {
        call.table += b * call.table_stride, call.lengths += b;
    } else {
        move(call.key, b, 0);
        move(call.value, b, 0);
        call.k_len = 1;
        for (int64_t h = 0; h < call.heads; h++)
            for (int64_t r = 0; r < call.ranges; r++) {
                const int64_t at = h * call.range_stride[1] + r;
                if (call.starts[at] < call.ends[at]) call.k_len = std::max<int64_t>(call.k_len, call.ends[at]);
            }
    }
    call.out = out.view;
    call.lse = lse.view.data;
    if (rv_forward(&call, 2) != RV_OK) fail("rv_forward refused one query");
    bool same = true;
    for (int64_t h = 0; h < call.heads; h++) {
        same = same && lse.get(0, h, 0, 0) == drawn.lse->get(b, h, 0, q);
        for (int64_t d = 0; d < call.value_dim; d++) same = same && out.get(0, h, 0, d) == drawn.out->get(b, h, q, d);
    }
    if (!same) fail("query " + std::to_string(q) + " of item " + std::to_string(b) + " has other bits by itself");
}

// What the series of 2^x adds to the error of a log-sum-exp. Products of bfloat16 numbers use 4 terms, whose error is more
// than the rounding of a sum in float32; in the other results of such calls it disappears in the rounding to bfloat16.
// The log-sum-exp is off by as much as its sum is, relatively. Each term is a 2^x, and is multiplied with another one
// for each later piece of its row, where the largest score so far is replaced. The pieces are the ranges of a row, cut by
// tiles of 128 keys; with AMX the first keys of a range may be a piece, together with what other rows hear before them.
double series_of(const rv_call &call, int64_t isa) {
    if (call.dtype != RV_BFLOAT16 || (isa != RV_AVX512_BF16 && isa != RV_AMX)) return 0;
    const int64_t tiles = (call.k_len + 127) / 128, cuts = isa == RV_AMX ? 2 * call.ranges : call.ranges;
    return SERIES * double(tiles + cuts - 1);
}

void check(uint64_t seed, const Settings &settings) {
    const int64_t dtypes[] = {RV_FLOAT32, RV_BFLOAT16, RV_FLOAT16, RV_FLOAT64};
    Case drawn(seed, dtypes[seed % 4], settings.most);
    for (int64_t isa = 0; isa < RV_ISAS; isa++) {
        if (!rv_isa_available(isa) || (settings.isa >= 0 && isa != settings.isa)) continue;
        rv_isa_force(isa);
        place = "seed " + std::to_string(seed) + ", " + NAMES[isa] + ": " + drawn.describe();
        const reference::Keep keep = keep_of(drawn);
        const reference::Output right = reference::forward(drawn.call, keep);
        run(drawn, 1, settings.forward_only);
        compare("out", *drawn.out, right.out, drawn.call.dtype);
        compare("lse", *drawn.lse, right.lse, drawn.lse->view.dtype, series_of(drawn.call, isa));
        if (!settings.forward_only && !drawn.call.table) {
            const reference::Gradients grads = reference::backward(drawn.call, keep);
            compare("d_query", *drawn.d_query, grads.query, drawn.call.dtype);
            compare("d_key", *drawn.d_key, grads.key, drawn.call.dtype);
            compare("d_value", *drawn.d_value, grads.value, drawn.call.dtype);
            if (drawn.d_bias) compare_bias(drawn, grads.bias);
            if (drawn.d_sinks) compare("d_sinks", *drawn.d_sinks, grads.sinks, drawn.call.dtype);
        }
        const auto alone = everything(drawn);
        for (int threads : {2, 3}) {
            run(drawn, threads, settings.forward_only);
            if (everything(drawn) != alone) fail(std::to_string(threads) + " threads give other bits than one");
        }
        const int64_t last = drawn.call.q_len - 1;
        if (drawn.call.batch_invariant && drawn.call.dropout == 0)
            for (int64_t b = 0; b < drawn.call.batch; b++)
                for (int64_t q : {int64_t(0), last / 2, last})
                    // With pages only the last query stands where it stands among others.
                    if (q == last || !drawn.call.table) check_batch_invariant(drawn, b, q);
        if (!drawn.call.table) check_statistics(drawn);
        RowsCase rows(seed);
        place = "seed " + std::to_string(seed) + ", " + NAMES[isa] + ": " + rows.describe();
        rows.check();
    }
    rv_isa_force(settings.isa);
}

void check_nonsense() {
    place = "calls that make no sense";
    Case drawn(4, RV_FLOAT32, 1e5);
    const std::vector<std::pair<const char *, std::function<void(rv_call &)>>> wrong = {
        {"a dim of 257", [](rv_call &call) { call.dim = 257; }},
        {"a value dim of 0", [](rv_call &call) { call.value_dim = 0; }},
        {"heads that do not divide", [](rv_call &call) { call.heads = 5, call.key_heads = 3; }},
        {"no query", [](rv_call &call) { call.query.data = nullptr; }},
        {"a query with gaps", [](rv_call &call) { call.query.stride[3] = 2; }},
        {"another dtype for the key", [](rv_call &call) { call.key.dtype = RV_BFLOAT16; }},
        {"an unknown dtype", [](rv_call &call) { call.dtype = 9; }},
        {"no ranges", [](rv_call &call) { call.ranges = 0; }},
        {"all dropped", [](rv_call &call) { call.dropout = 1; }},
        {"pages without lengths", [](rv_call &call) { call.table = call.starts, call.block_size = 4; }},
    };
    for (const auto &each : wrong) {
        rv_call call = drawn.call;
        each.second(call);
        if (rv_forward(&call, 1) != RV_BAD_CALL) fail(std::string(each.first) + " was not refused");
    }
    StatisticsCase statistics(drawn);
    const std::vector<std::pair<const char *, std::function<void(rv_statistics_call &)>>> wrong_statistics = {
        {"statistics of a dim of 257", [](rv_statistics_call &call) { call.attention.dim = 257; }},
        {"statistics of no keys", [](rv_statistics_call &call) { call.attention.k_len = 0; }},
        {"no entropy", [](rv_statistics_call &call) { call.entropy = nullptr; }},
        {"one bin of distances", [](rv_statistics_call &call) { call.histogram_bins = 1; }},
        {"links without a place", [](rv_statistics_call &call) { call.links = 3, call.link_key = nullptr; }},
        {"a map without a width", [](rv_statistics_call &call) { call.bin_width = 0, call.map = call.entropy; }},
        {"a map that is too small", [](rv_statistics_call &call) { call.bin_width = 1, call.map_rows = 0; }},
    };
    for (const auto &each : wrong_statistics) {
        rv_statistics_call call = statistics.call;
        each.second(call);
        if (rv_statistics(&call, 1) != RV_BAD_CALL) fail(std::string(each.first) + " was not refused");
    }
    float number = 0;
    const rv_linear_call no_weight{1, 1, 1, &number, 1, nullptr, 1, nullptr, &number, 1};
    const rv_activation_call no_function{9, 1, &number, &number};
    if (rv_linear(&no_weight, 1) != RV_BAD_CALL) fail("a linear layer without a weight was not refused");
    if (rv_activation(&no_function, 1) != RV_BAD_CALL) fail("an unknown activation was not refused");
    if (rv_statistics(nullptr, 1) != RV_BAD_CALL) fail("no statistics were not refused");
    if (rv_forward(nullptr, 1) != RV_BAD_CALL) fail("no call was not refused");
    if (rv_forward(&drawn.call, 0) != RV_BAD_CALL) fail("no threads were not refused");
    if (rv_isa_force(RV_ISAS) != RV_BAD_CALL) fail("an instruction set that does not exist was taken");
    if (drawn.out->wrote_outside()) fail("a refused call wrote something");
}

void check_concurrent(const Settings &settings) {
    place = "four calls at once";
    std::vector<std::unique_ptr<Case>> drawn;
    std::vector<std::vector<std::vector<unsigned char>>> right;
    for (uint64_t seed = 1000; seed < 1004; seed++) {
        drawn.push_back(std::make_unique<Case>(seed, RV_FLOAT32, settings.most));
        run(*drawn.back(), 1, settings.forward_only);
        right.push_back(everything(*drawn.back()));
    }
    std::vector<std::thread> threads;
    for (auto &each : drawn)
        threads.emplace_back([&] {
            for (int i = 0; i < 20; i++) run(*each, 2, settings.forward_only);
        });
    for (auto &thread : threads) thread.join();
    for (size_t i = 0; i < drawn.size(); i++)
        if (everything(*drawn[i]) != right[i]) fail("calls at once disturb each other");
}

void check_forked(const Settings &settings) {
    place = "a forked child";
    Case drawn(2000, RV_FLOAT32, settings.most);
    run(drawn, 3, settings.forward_only);
    const auto right = everything(drawn);
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        for (int i = 0; i < 3; i++) run(drawn, 3, settings.forward_only);
        _exit(everything(drawn) == right ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) fail("it hung or crashed, signal " + std::to_string(WTERMSIG(status)));
    if (WIFEXITED(status) && WEXITSTATUS(status)) fail("it gives another answer than its parent");
    run(drawn, 3, settings.forward_only);
    if (everything(drawn) != right) fail("the parent gives another answer after it");
}

} // namespace

int main(int count, char **words) {
    Settings settings;
    for (int i = 1; i < count; i++) {
        const std::string word = words[i], next = i + 1 < count ? words[i + 1] : "";
        if (word == "--forward") {
            settings.forward_only = true;
            continue;
        }
        i++;
        if (word == "--cases") settings.cases = std::stoll(next);
        else if (word == "--seed") settings.seed = std::stoull(next);
        else if (word == "--most") settings.most = std::stod(next);
        else if (word == "--isa") {
            while (++settings.isa < RV_ISAS && next != NAMES[settings.isa]) {}
            if (!rv_isa_available(settings.isa)) {
                std::printf("no instruction set %s here\n", next.c_str());
                return 2;
            }
        } else {
            std::printf("unknown word %s\n", word.c_str());
            return 2;
        }
    }
    if (rv_abi() != RV_ABI || rv_call_size() != int64_t(sizeof(rv_call)) ||
        rv_statistics_call_size() != int64_t(sizeof(rv_statistics_call)))
        fail("another interface");
    rv_isa_force(settings.isa);
    check_nonsense();
    for (int64_t i = 0; i < settings.cases && failures < 20; i++) check(settings.seed + uint64_t(i), settings);
    if (settings.cases > 1) {
        check_concurrent(settings);
        check_forked(settings);
    }
    std::printf("%lld cases, %d failures; the largest error is %.2f of what is allowed (%s)\n",
                (long long)settings.cases, failures, worst, worst_place.c_str());
    return failures ? 1 : 0;
}
