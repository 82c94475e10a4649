#include "runtime/training/schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numbers>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"
#include "runtime/training/rate_table.h"

namespace onnx_train {

// What a formula reads.
struct CurvePoint {
  double peak, since, span, total;  // `since` and `span` are steps after the warm-up
  const Curve& curve;
  const ScheduleState& state;

  double operator[](const char* key) const { return curve.options.at(key); }
  double progress() const { return std::min(since / span, 1.0); }
};

struct CurveOption {
  const char* key;
  double otherwise;  // NaN: it must be given
  Range range = {};
  bool whole = false;
  std::vector<const char*> words = {};  // the value is one of these, stored as its position
};

struct CurveRow {
  const char* name;
  double (*rate)(const CurvePoint&);
  std::vector<CurveOption> options;
  bool needs_end = false;
  bool reads_file = false;
  void (*observe)(const Curve&, double loss, ScheduleState*) = nullptr;
};

namespace {

constexpr double kGiven = std::numeric_limits<double>::quiet_NaN();
constexpr Range kShare{0, false, 1};

double between(double from, double to, double progress) {
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

// torch.optim.lr_scheduler.OneCycleLR with three_phase=False and anneal_strategy="cos".
double one_cycle(const CurvePoint& p) {
  const double first = p.peak / p["div_factor"], least = first / p["final_div_factor"];
  const double top = p["pct_start"] * p.span - 1, end = p.span - 1;
  if (p.since <= top) return top > 0 ? between(first, p.peak, p.since / top) : p.peak;
  return end > top ? between(p.peak, least, std::min((p.since - top) / (end - top), 1.0)) : least;
}

double warm_up_stable_decay(const CurvePoint& p) {
  const double steps = std::min(p["decay"] * p.total, p.span), final = p["final_lr"];
  const double t = std::clamp((p.since - (p.span - steps)) / steps, 0.0, 1.0);
  const double share[] = {1 - t, 0.5 * (1 + std::cos(std::numbers::pi * t)), 1 - std::sqrt(t)};
  return final + (p.peak - final) * share[static_cast<size_t>(p["shape"])];
}

double restarts(const CurvePoint& p) {
  double since = p.since, length = p["T_0"];
  if (p["T_mult"] == 1) since = std::fmod(since, length);
  while (since >= length) {
    since -= length;
    length *= p["T_mult"];
  }
  return between(p.peak, p["final_lr"], since / length);
}

// torch.optim.lr_scheduler.ReduceLROnPlateau with mode="min" and threshold_mode="rel". A loss that is not finite is
// not lower.
void observe_plateau(const Curve& curve, double loss, ScheduleState* state) {
  const bool lower = !state->best || loss < *state->best * (1 - curve.options.at("threshold"));
  if (lower && std::isfinite(loss)) {
    state->best = loss;
    state->stale = 0;
  } else {
    ++state->stale;
  }
  if (state->cooldown > 0) {
    --state->cooldown;
    state->stale = 0;
  }
  if (static_cast<double>(state->stale) <= curve.options.at("patience")) return;
  state->scale *= curve.options.at("factor");
  state->cooldown = static_cast<int64_t>(curve.options.at("cooldown"));
  state->stale = 0;
}

const std::vector<CurveRow>& curve_rows() {
  static const CurveOption final_rate = {"final_lr", 0};
  static const std::vector<CurveRow> rows = {
      {"constant", [](const CurvePoint& p) { return p.peak; }, {}},
      {"linear",
       [](const CurvePoint& p) { return p.peak + (p["final_lr"] - p.peak) * p.progress(); },
       {final_rate},
       /*needs_end=*/true},
      {"cosine",
       [](const CurvePoint& p) { return between(p.peak, p["final_lr"], p.progress()); },
       {final_rate},
       /*needs_end=*/true},
      {"step",
       [](const CurvePoint& p) { return p.peak * std::pow(p["step_factor"], std::floor(p.since / p["step_every"])); },
       {{"step_every", kGiven, kCount, /*whole=*/true}, {"step_factor", 0.1, kPositive}}},
      {"polynomial",
       [](const CurvePoint& p) {
         return p["final_lr"] + (p.peak - p["final_lr"]) * std::pow(1 - p.progress(), p["power"]);
       },
       {{"power", 1}, final_rate},
       /*needs_end=*/true},
      {"exponential",
       [](const CurvePoint& p) { return p.peak * std::pow(p["gamma"], p.since); },
       {{"gamma", kGiven, kPositive}}},
      {"one_cycle",
       one_cycle,
       {{"pct_start", 0.3, kShare}, {"div_factor", 25, kPositive}, {"final_div_factor", 1e4, kPositive}},
       /*needs_end=*/true},
      {"wsd",
       warm_up_stable_decay,
       {{"decay", 0.2, {0, true, 1}}, {"shape", 0, {}, false, {"linear", "cosine", "sqrt"}}, final_rate},
       /*needs_end=*/true},
      {"restarts", restarts, {{"T_0", kGiven, kCount, true}, {"T_mult", 1, kCount, true}, final_rate}},
      {"plateau",
       [](const CurvePoint& p) { return std::min(p.peak, std::max(p.peak * p.state.scale, p["final_lr"])); },
       {{"factor", 0.1, {0, true, 1}},
        {"patience", 10, {}, true},
        {"threshold", 1e-4, kShare},
        {"cooldown", 0, {}, true},
        final_rate},
       /*needs_end=*/false,
       /*reads_file=*/false,
       observe_plateau},
      {"table", [](const CurvePoint& p) { return interpolate(p.curve.points, p.since); }, {}, false, true},
  };
  return rows;
}

const CurveOption* find_option(const CurveRow& row, const std::string& key) {
  const auto found = std::find_if(row.options.begin(), row.options.end(), [&](const auto& o) { return o.key == key; });
  return found == row.options.end() ? nullptr : &*found;
}

template <typename Rows, typename Name>
std::vector<std::string> names_of(const Rows& rows, const Name& name) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(name(row));
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += concat(text.empty() ? "" : ", ", name);
  return text;
}

class CurveParser {
 public:
  explicit CurveParser(const std::string& text) : reader_("--schedule", text) {}

  Curve run() {
    const Word name = reader_.word("the name of a schedule");
    curve_.row = find(name);
    for (const CurveOption& option : curve_.row->options) curve_.options[option.key] = option.otherwise;
    const Arguments arguments = read_arguments(&reader_);
    if (!reader_.at_end()) reader_.fail_at(reader_.column(), "expected the end");
    const size_t files = curve_.row->reads_file ? 1 : 0;
    if (arguments.names.size() > files) {
      const Word& extra = arguments.names[files];
      reader_.fail_at(extra.column, concat("'", extra.text, "' has no value; write ", extra.text, "=..."));
    }
    if (arguments.names.size() < files) reader_.fail_at(reader_.column(), "expected a file: table('rates.csv')");
    for (const Option& option : arguments.options) set(option);
    if (files > 0) curve_.file = arguments.names[0].text;
    return curve_;
  }

 private:
  const CurveRow* find(const Word& name) {
    for (const CurveRow& row : curve_rows()) {
      if (row.name == name.text) return &row;
    }
    const auto names = names_of(curve_rows(), [](const CurveRow& row) { return row.name; });
    reader_.fail_at(name.column, concat("there is no schedule '", name.text, "'; take ", listed(names),
                                        did_you_mean(name.text, names)));
  }

  void set(const Option& option) {
    const CurveOption* row = find_option(*curve_.row, option.key.text);
    const auto names = names_of(curve_.row->options, [](const CurveOption& o) { return o.key; });
    if (!row) {
      reader_.fail_at(
          option.key.column,
          concat(curve_.row->name, " has no option '", option.key.text, "'",
                 names.empty() ? "" : concat("; it has ", listed(names), did_you_mean(option.key.text, names))));
    }
    curve_.options[row->key] = row->words.empty() ? number(option, *row) : word(option, *row);
  }

  double number(const Option& option, const CurveOption& row) {
    const double* value = std::get_if<double>(&option.value);
    if (!value) reader_.fail_at(option.column, concat("'", row.key, "' is a number"));
    const Range& range = row.range;
    const bool valid = (range.above ? *value > range.least : *value >= range.least) && *value <= range.most;
    if (valid && (!row.whole || (*value == std::floor(*value) && *value <= 0x1p53))) return *value;
    std::string wanted = concat(row.whole ? "a whole number" : "a number", range.above ? " above " : " of at least ",
                                number_text(range.least));
    if (std::isfinite(range.most)) wanted += " and at most " + number_text(range.most);
    reader_.fail_at(option.column, concat("'", row.key, "' is ", number_text(*value), "; it must be ", wanted));
  }

  double word(const Option& option, const CurveOption& row) {
    const Word* value = std::get_if<Word>(&option.value);
    for (size_t i = 0; value && i < row.words.size(); ++i) {
      if (value->text == row.words[i]) return static_cast<double>(i);
    }
    reader_.fail_at(option.column, concat("'", row.key, "' is one of ", listed({row.words.begin(), row.words.end()})));
  }

  ExpressionReader reader_;
  Curve curve_;
};

}  // namespace

Curve::Curve() : row(&curve_rows().front()) {}

bool Curve::needs_end() const { return row->needs_end; }

Curve parse_curve(const std::string& text) {
  Curve curve = CurveParser(text).run();
  if (!curve.file.empty()) curve.points = read_rate_table(curve.file);
  return curve;
}

std::string to_string(const Curve& curve) {
  std::string text = curve.file.empty() ? "" : quoted_if_needed(curve.file);
  for (const CurveOption& option : curve.row->options) {
    const double value = curve.options.at(option.key);
    text += concat(text.empty() ? "" : ", ", option.key, "=",
                   option.words.empty() ? number_text(value) : option.words.at(static_cast<size_t>(value)));
  }
  return text.empty() ? curve.row->name : concat(curve.row->name, "(", text, ")");
}

void Schedule::end_at(int64_t steps) {
  total = steps;
  if (warmup_share == 0) return;
  constexpr double kRounding = 1e-9;  // a tenth of 30 steps is 3 of them
  warmup = std::max<int64_t>(static_cast<int64_t>(std::ceil(warmup_share * static_cast<double>(steps) - kRounding)), 0);
}

double Schedule::rate(int64_t step, const ScheduleState& state) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const auto span = static_cast<double>(std::max<int64_t>(total - warmup, 1));
  return curve.row->rate({peak, static_cast<double>(step - warmup), span, static_cast<double>(total), curve, state});
}

void Schedule::observe(double loss, ScheduleState* state) const {
  if (curve.row->observe) curve.row->observe(curve, loss, state);
}

namespace {

void check_curve(const std::string& text) {
  try {
    CurveParser(text).run();
  } catch (const Error& error) {
    throw UsageError(error.what(), error.code());
  }
}

struct Warmup {
  int64_t steps = 0;
  double share = 0;
};

// "100" or "10%".
Warmup read_warmup(const std::string& text) {
  Warmup warmup;
  const bool is_share = text.ends_with('%');
  const char* const end = text.data() + text.size() - (is_share ? 1 : 0);
  double percent = 0;
  const auto [stop, error] =
      is_share ? std::from_chars(text.data(), end, percent) : std::from_chars(text.data(), end, warmup.steps);
  constexpr double kAll = 100;
  if (error != std::errc() || stop != end || !(percent >= 0 && percent <= kAll) || warmup.steps < 0) {
    throw UsageError(concat("--warmup is '", text, "'; take a number of steps, or a share of all such as 10%"));
  }
  warmup.share = percent / kAll;
  return warmup;
}

}  // namespace

std::vector<std::string> schedule_names() {
  return names_of(curve_rows(), [](const CurveRow& row) { return row.name; });
}

std::vector<CommandOption> schedule_options(ScheduleSettings* s) {
  return {
      {"--lr", OptionTarget(&s->rate).or_auto(&s->find_rate),
       "learning rate, after the warm-up; auto finds one by a range test of at most 100 steps, which change nothing "
       "[the optimizer's, as built]",
       "X"},
      {"--schedule",
       {&s->curve, check_curve},
       concat("of the learning rate: ", listed(schedule_names()),
              ", with options as in 'one_cycle(pct_start=0.3)' [constant]"),
       "CURVE",
       false,
       {},
       schedule_names},
      {"--warmup",
       {&s->warmup, [](const std::string& text) { read_warmup(text); }},
       "steps in which the learning rate grows from 0, or a share of all, such as 10% [0]",
       "N"},
      {"--final-lr", &s->final_lr, "final_lr of the schedule: where it ends [0]", "X"},
      {"--step-every", {&s->step_every, kCount}, "schedule step: steps between two falls", "N"},
      {"--step-factor", {&s->step_factor, kPositive}, "schedule step: what each fall multiplies by [0.1]", "X"}};
}

Schedule resolve(const ScheduleSettings& settings, double built_rate) {
  const auto [warmup, warmup_share] = read_warmup(settings.warmup);
  Schedule schedule{settings.rate.value_or(built_rate), parse_curve(settings.curve), warmup, 0, warmup_share};
  Curve& curve = schedule.curve;
  const auto set = [&](const char* key, const auto& given) {
    if (given && curve.options.count(key) > 0) curve.options[key] = static_cast<double>(*given);
  };
  set("final_lr", settings.final_lr);
  set("step_every", settings.step_every);
  set("step_factor", settings.step_factor);
  for (const auto& [key, value] : curve.options) {
    if (!std::isnan(value)) continue;
    std::string flag = key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    ScheduleSettings any;
    const auto flags = schedule_options(&any);
    const bool has_flag =
        std::any_of(flags.begin(), flags.end(), [&](const CommandOption& option) { return key_of(option) == flag; });
    throw UsageError(concat("schedule ", curve.row->name, " needs ", key, ": ", curve.row->name, "(", key, "=...)",
                            has_flag ? concat(", or --", flag) : ""));
  }
  if (curve.row->reads_file && (warmup > 0 || warmup_share > 0)) {
    throw UsageError("a table of rates holds its own warm-up; leave out --warmup");
  }
  return schedule;
}

}  // namespace onnx_train
