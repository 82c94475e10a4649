// The learning rate of each step: a warm-up from zero, then a curve. A pure function of the step and, for the curve
// `plateau`, of the losses of the evaluations so far. Plain values; any thread.
//
// A curve is written as an optimizer is, a name and options in parentheses: "one_cycle(pct_start=0.3)". Options are
// named as PyTorch names them (torch.optim.lr_scheduler), and those of fit by their own names. Here p is the peak, f is
// final_lr, s counts the steps since the warm-up, and t is s as a share of the steps that are left then.
//
//   constant      p
//   linear        p + (f - p) t                                   final_lr=0
//   cosine        f + (p - f) (1 + cos(pi t)) / 2                 final_lr=0
//   step          p step_factor^floor(s / step_every)             step_every, step_factor=0.1
//   polynomial    f + (p - f) (1 - t)^power                       power=1, final_lr=0
//   exponential   p gamma^s                                       gamma
//   one_cycle     OneCycleLR: cosine from p / div_factor to p, then down to p / div_factor / final_div_factor
//                                                                 pct_start=0.3, div_factor=25, final_div_factor=10000
//   wsd           p; over the last share `decay` of all steps it falls to f   decay=0.2, shape=linear, cosine or sqrt
//   restarts      SGDR: cosine over T_0 steps, T_mult times as many after each restart     T_0, T_mult=1, final_lr=0
//   plateau       ReduceLROnPlateau: times `factor`, not below f, after more than `patience` evaluations without a loss
//                 below best (1 - threshold)    factor=0.1, patience=10, threshold=0.0001, cooldown=0, final_lr=0
//   table(FILE)   rates by step from lines "step,lr", linear between them; p has no part in it
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/support/options.h"

namespace onnx_train {

struct CurveRow;  // of the table in schedule.cc

struct Curve {
  const CurveRow* row;                            // never null
  std::map<std::string, double> options;          // all that the row has
  std::string file;                               // of `table`
  std::vector<std::pair<double, double>> points;  // of `table`: step and rate, by step

  Curve();  // "constant"
  bool needs_end() const;
};

// What the evaluations so far have done to the rate. A part of checkpoints.
struct ScheduleState {
  double scale = 1;
  std::optional<double> best;
  int64_t stale = 0, cooldown = 0;  // evaluations: without a lower loss, and that do not count any more

  bool operator==(const ScheduleState&) const = default;
};

struct Schedule {
  double peak = 1e-3;  // after the warm-up
  Curve curve = {};
  int64_t warmup = 0;       // steps: the k-th, counted from 1, has peak k / warmup
  int64_t total = 0;        // steps of the whole training, for curves that need its end
  double warmup_share = 0;  // the warm-up as a share of `total`, rounded up; 0: it is `warmup`

  // Sets `total`, and the warm-up if it is a share of it.
  void end_at(int64_t steps);

  // The rate of step `step`, counted from 0.
  double rate(int64_t step, const ScheduleState& state = {}) const;
  // Takes note of the loss of an evaluation.
  void observe(double loss, ScheduleState* state) const;
};

// Throws Error that names the column, or a line of the file.
Curve parse_curve(const std::string& text);
// With every option: "cosine(final_lr=0)".
std::string to_string(const Curve& curve);

// The options of a schedule by the names that `fit`, the library and Python share.
struct ScheduleSettings {
  std::string curve = "constant";
  std::optional<double> rate;
  bool find_rate = false;                       // the rate is "auto": rate_search.h
  std::string warmup = "0";                     // steps, or "10%" of all
  std::optional<double> final_lr, step_factor;  // these set the options of the same names of curves that have them
  std::optional<int64_t> step_every;
};
std::vector<CommandOption> schedule_options(ScheduleSettings* settings);
// The schedule with `built_rate` where no rate is given, and without `total`. Throws UsageError for settings that do
// not fit each other, and Error for a file that cannot be read.
Schedule resolve(const ScheduleSettings& settings, double built_rate);

}  // namespace onnx_train
