// A random linear layer and its activation, judged against the definition; each row by itself must have the same bits.
#ifndef REARVIEW_TESTS_ROWS_CASE_HPP
#define REARVIEW_TESTS_ROWS_CASE_HPP

#include <random>

#include "judging.hpp"

class RowsCase {
  public:
    explicit RowsCase(uint64_t seed)
        : draw_(seed), rows_(below(1, 90)), depth_(below(1, 140)), outs_(below(1, 120)),
          x_(RV_FLOAT32, {1, 1, rows_, depth_}, padded(below(0, 4)), UNWRITTEN),
          weight_(RV_FLOAT32, {1, 1, outs_, depth_}, padded(below(0, 4)), UNWRITTEN),
          bias_(RV_FLOAT32, {1, 1, 1, outs_}, Layout{}, UNWRITTEN),
          out_(RV_FLOAT32, {1, 1, rows_, outs_}, padded(below(0, 4)), UNWRITTEN) {
        for (Tensor *each : {&x_, &weight_, &bias_})
            for (int64_t t = 0; t < each->shape()[2]; t++)
                for (int64_t d = 0; d < each->shape()[3]; d++) each->set(0, 0, t, d, normal_(draw_));
        call_ = {rows_, depth_, outs_, data(x_), x_.view.stride[2], data(weight_), weight_.view.stride[2],
                 seed % 2 ? data(bias_) : nullptr, data(out_), out_.view.stride[2]};
    }

    std::string describe() const {
        return "linear, rows " + std::to_string(rows_) + ", depth " + std::to_string(depth_) + ", outs " +
               std::to_string(outs_);
    }

    void check() {
        run(1);
        reference::Numbers right(rows_ * outs_);
        for (int64_t r = 0; r < rows_; r++)
            for (int64_t o = 0; o < outs_; o++) {
                const size_t at = size_t(r * outs_ + o);
                for (int64_t d = 0; d < depth_; d++) {
                    const double term = x_.get(0, 0, r, d) * weight_.get(0, 0, o, d);
                    right.add(int64_t(at), term, std::fabs(term));
                }
                if (call_.bias) right.add(int64_t(at), bias_.get(0, 0, 0, o), std::fabs(bias_.get(0, 0, 0, o)));
            }
        compare("linear", out_, right, RV_FLOAT32);
        const auto alone = out_.bytes();
        for (int threads : {2, 3}) {
            run(threads);
            if (out_.bytes() != alone) fail(std::to_string(threads) + " threads give other bits than one");
        }
        check_row(below(0, rows_ - 1));
        for (int64_t function = RV_RELU; function <= RV_GELU_TANH; function++) check_activation(function);
    }

  private:
    void run(int threads) {
        out_.refill(UNWRITTEN);
        if (rv_linear(&call_, threads) != RV_OK) fail("rv_linear refused");
    }

    void check_row(int64_t row) {
        Tensor one(RV_FLOAT32, {1, 1, 1, outs_}, Layout{}, UNWRITTEN);
        rv_linear_call call = call_;
        call.rows = 1, call.x += row * call.x_stride, call.out = data(one);
        if (rv_linear(&call, 1) != RV_OK) fail("rv_linear refused one row");
        for (int64_t o = 0; o < outs_; o++)
            if (one.get(0, 0, 0, o) != out_.get(0, 0, row, o)) return fail("a row has other bits by itself");
    }

    void check_activation(int64_t function) {
        const int64_t count = depth_;
        Tensor out(RV_FLOAT32, {1, 1, 1, count}, Layout{}, UNWRITTEN), one(RV_FLOAT32, {1, 1, 1, 1}, Layout{}, UNWRITTEN);
        const rv_activation_call call{function, count, data(x_), data(out)};
        if (rv_activation(&call, 2) != RV_OK) fail("rv_activation refused");
        reference::Numbers right(count);
        for (int64_t n = 0; n < count; n++) {
            const double x = x_.get(0, 0, 0, n);
            right.add(n, reference::activation(function, x), std::fabs(x));
            const rv_activation_call alone{function, 1, data(x_) + n, data(one)};
            if (rv_activation(&alone, 1) != RV_OK) fail("rv_activation refused one number");
            if (one.get(0, 0, 0, 0) != out.get(0, 0, 0, n)) fail("a number has other bits by itself");
        }
        compare("activation", out, right, RV_FLOAT32);
    }

    static float *data(const Tensor &tensor) { return static_cast<float *>(tensor.view.data); }
    static Layout padded(int64_t pad) {
        Layout layout;
        layout.pad = pad;
        return layout;
    }
    int64_t below(int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(draw_); }

    std::mt19937_64 draw_;
    std::normal_distribution<double> normal_{0, 2};
    int64_t rows_, depth_, outs_;
    Tensor x_, weight_, bias_, out_;
    rv_linear_call call_;
};

#endif
