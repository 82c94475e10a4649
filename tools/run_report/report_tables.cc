#include "tools/run_report/report_tables.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"
#include "tools/run_report/class_report.h"

namespace onnx_train {
namespace {

using nlohmann::ordered_json;

}  // namespace

Series elapsed(const RunFiles& run) {
  const auto *steps = run.steps.column("step"), *times = run.steps.column("ms");
  Series series;
  if (!steps || !times) return series;
  series.x = *steps;
  double seconds = 0;
  for (const double ms : *times) series.y.push_back(seconds += ms > 0 ? ms / 1e3 : 0);
  return series;
}

namespace {

// ---- Figures

struct Figure {
  std::string label, value, more;
};

std::string number_or_none(double value) { return std::isnan(value) ? "not finite" : format_number(value); }

// The lowest value and its step; a NaN if none is finite.
std::pair<double, double> lowest(const Series& series) {
  std::pair<double, double> best = {std::nan(""), 0};
  for (size_t i = 0; i < series.size(); ++i) {
    if (std::isnan(best.first) || series.y[i] < best.first) best = {series.y[i], series.x[i]};
  }
  return best;
}

std::string at_step(double step) { return concat("at step ", static_cast<int64_t>(step)); }

const Series* evaluation(const RunFiles& run, const char* name) {
  const auto found = run.evaluations.find(name);
  return found == run.evaluations.end() || found->second.size() == 0 ? nullptr : &found->second;
}

double median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string progress_of(const RunFiles& run) {
  const std::vector<double>* steps = run.steps.column("step");
  const std::string last = steps && !steps->empty() ? std::to_string(static_cast<int64_t>(steps->back())) : "0";
  const std::string total = run.derived("steps");
  return total.empty() ? last : concat(last, " of ", total);
}

double memory_of(const RunFiles& run, const std::string& what) {
  const ordered_json* memory = run.find_derived("memory");
  if (!memory || !memory->is_object() || !memory->contains(what)) return std::nan("");
  return (*memory)[what].is_number() ? (*memory)[what].get<double>() : std::nan("");
}

std::vector<Figure> figures_of(const RunFiles& run) {
  std::vector<Figure> figures = {{"Step", progress_of(run), run.running ? "the run goes on" : ""}};
  const auto column = [&](const char* name) -> const std::vector<double>* {
    const auto* values = run.steps.column(name);
    return values && !values->empty() ? values : nullptr;
  };
  if (const Series* loss = evaluation(run, "eval_loss")) {
    const auto [value, step] = lowest(*loss);
    figures.push_back({"Lowest eval loss", number_or_none(value), std::isnan(value) ? "" : at_step(step)});
  } else if (const Series* training = evaluation(run, "train_loss")) {
    const auto [value, step] = lowest(*training);
    figures.push_back({"Lowest training loss", number_or_none(value), "mean between evaluations"});
  }
  if (const auto* losses = column("loss")) {
    figures.push_back({"Last training loss", number_or_none(losses->back()), "of one step"});
  }
  if (const Series* accuracy = evaluation(run, "eval_accuracy"); accuracy && !std::isnan(accuracy->y.back())) {
    figures.push_back({"Eval accuracy", format_percent(accuracy->y.back()), at_step(accuracy->x.back())});
  }
  if (const auto* samples = column("samples"), *times = column("ms"); samples && times) {
    std::vector<double> rates;
    for (size_t i = 0; i < times->size(); ++i) rates.push_back(1e3 * (*samples)[i] / (*times)[i]);
    figures.push_back({"Throughput", format_count(median(rates)) + "/s",
                       concat("samples; ", format_number(median(*times)), " ms a step")});
    figures.push_back({"Time in steps", format_duration(elapsed(run).y.back()), concat(times->size(), " steps")});
  }
  if (const double bytes = memory_of(run, "total"); !std::isnan(bytes)) {
    figures.push_back({"Memory", format_bytes(bytes), "planned peak of the process"});
  }
  return figures;
}

// ---- Tables

std::string cell(const std::string& text, const char* kind = "") {
  return concat("<td", *kind ? concat(" class=\"", kind, "\"") : "", ">", escaped(text), "</td>");
}

std::string head(const std::vector<std::string>& names, bool numbers) {
  std::string text = "<thead><tr>";
  for (size_t i = 0; i < names.size(); ++i) {
    text += concat("<th", numbers && i > 0 ? " class=\"number\"" : "", ">", escaped(names[i]), "</th>");
  }
  return text + "</tr></thead>";
}

std::string table(const std::string& heading, const std::string& rows) {
  return concat(heading.empty() ? "" : concat("<h2>", heading, "</h2>\n"), "<div class=\"wide\"><table>", rows,
                "</table></div>\n");
}

std::string bar(double share) {
  return concat("<td class=\"share\"><i style=\"width:", format_number(100 * std::clamp(share, 0.0, 1.0)),
                "%\"></i></td>");
}

std::string memory_table(const RunFiles& run) {
  const double total = memory_of(run, "total");
  if (!(total > 0)) return "";
  std::string rows;
  for (const auto& [what, bytes] : run.find_derived("memory")->items()) {
    if (!bytes.is_number()) continue;
    const auto size = bytes.get<double>();
    rows += concat(what == "total" ? "<tr class=\"total\">" : "<tr>", "<th>", escaped(what), "</th>",
                   cell(format_bytes(size), "number"), bar(what == "total" ? 0 : size / total), "</tr>");
  }
  return table("Memory", concat("<tbody>", rows, "</tbody>"));
}

std::string slowest_nodes(const RunFiles& run) {
  constexpr size_t kMost = 20;
  struct Row {
    std::string op, name, kernel;
    double ms;
  };
  std::vector<Row> nodes;
  double total = 0;
  for (const auto& node : run.nodes) {
    const auto text = [&](const char* key) { return node.contains(key) ? text_of(node[key]) : ""; };
    if (!node.is_object() || !node.contains("ms") || !node["ms"].is_number()) continue;
    nodes.push_back({text("op"), text("name"), text("kernel"), node["ms"].get<double>()});
    total += nodes.back().ms;
  }
  if (!(total > 0)) return "";
  std::stable_sort(nodes.begin(), nodes.end(), [](const Row& a, const Row& b) { return a.ms > b.ms; });
  std::string rows =
      "<thead><tr><th>operator</th><th>node</th><th>kernel</th><th "
      "class=\"number\">ms</th><th>share</th></tr></thead><tbody>";
  for (size_t i = 0; i < std::min(kMost, nodes.size()); ++i) {
    rows += concat("<tr>", cell(nodes[i].op), cell(nodes[i].name), cell(nodes[i].kernel),
                   cell(format_number(nodes[i].ms), "number"), bar(nodes[i].ms / total), "</tr>");
  }
  return table("Slowest nodes", rows + "</tbody>");
}

std::string evaluations_table(const RunFiles& run) {
  const Series* first = evaluation(run, "train_loss");
  if (!first) return "";
  constexpr size_t kMost = 200;
  std::vector<std::string> names = {"step"};
  for (const auto& [name, series] : run.evaluations) {
    if (series.size() == first->size()) names.push_back(name);  // others have gaps
  }
  std::string rows;
  for (size_t i = first->size() - std::min(first->size(), kMost); i < first->size(); ++i) {
    rows += concat("<tr>", cell(std::to_string(static_cast<int64_t>(first->x[i]))));
    for (size_t k = 1; k < names.size(); ++k) {
      rows += cell(number_or_none(run.evaluations.at(names[k]).y[i]), "number");
    }
    rows += "</tr>";
  }
  for (std::string& name : names) std::replace(name.begin(), name.end(), '_', ' ');
  const std::string which =
      first->size() > kMost ? concat("the last ", kMost, " of ", first->size()) : std::to_string(first->size());
  return concat("<details><summary>Evaluations: ", which, "</summary>",
                table("", concat(head(names, true), "<tbody>", rows, "</tbody>")), "</details>\n");
}

// Keys of options and what was derived from them, in the order of their first run.
std::vector<std::string> keys_of(const std::vector<RunFiles>& runs, bool derived) {
  std::vector<std::string> keys;
  for (const RunFiles& run : runs) {
    const auto empty = ordered_json::object();
    const ordered_json* object = run.options.is_object() ? &run.options : &empty;
    if (derived) object = object->contains("derived") ? &(*object)["derived"] : &empty;
    for (const auto& [key, value] : object->items()) {
      const bool known = std::find(keys.begin(), keys.end(), key) != keys.end();
      if (!known && !(value.is_object() || value.is_null() || (value.is_array() && derived))) keys.push_back(key);
    }
  }
  return keys;
}

std::string options_rows(const std::vector<RunFiles>& runs, bool derived, bool differing) {
  std::string rows;
  for (const std::string& key : keys_of(runs, derived)) {
    std::vector<std::string> values;
    for (const RunFiles& run : runs) values.push_back(derived ? run.derived(key) : run.option(key));
    if (std::all_of(values.begin(), values.end(), [](const auto& value) { return value.empty(); })) continue;
    if (runs.size() > 1 && key == "out") continue;  // the names of the runs
    const bool differs =
        std::any_of(values.begin(), values.end(), [&](const auto& value) { return value != values[0]; });
    if (differs != differing) continue;
    if (!differing) values.resize(1);
    rows += concat("<tr><th>", escaped(key), "</th>");
    for (const std::string& value : values) rows += cell(value);
    rows += "</tr>";
  }
  return rows;
}

std::string options_tables(const std::vector<RunFiles>& runs) {
  const bool one = runs.size() == 1;
  std::vector<std::string> names = {""};
  for (const RunFiles& run : runs) names.push_back(run.name);
  std::string text;
  if (!one) {
    const std::string rows = options_rows(runs, false, true) + options_rows(runs, true, true);
    text += rows.empty() ? "<h2>Options</h2><p>The options of these runs are equal.</p>\n"
                         : table("What differs", concat(head(names, false), "<tbody>", rows, "</tbody>"));
  }
  const std::string made = options_rows(runs, true, false), given = options_rows(runs, false, false);
  if (!made.empty()) text += table(one ? "Model, data and machine" : "In common", concat("<tbody>", made, "</tbody>"));
  if (!given.empty()) {
    text += concat(one ? "<h2>Options</h2>\n" : "", "<details><summary>All options", one ? "" : " that are equal",
                   "</summary>", table("", concat("<tbody>", given, "</tbody>")), "</details>\n");
  }
  return text;
}

}  // namespace

std::string page_title(const std::vector<RunFiles>& runs) {
  constexpr size_t kLongest = 60;
  std::string title;
  for (const RunFiles& run : runs) title += concat(title.empty() ? "" : ", ", run.name);
  return runs.size() == 1 || title.size() <= kLongest ? title : concat(runs.size(), " runs");
}

std::string summary(const std::vector<RunFiles>& runs) {
  std::string text;
  const auto add_notes = [&](const RunFiles& run) {
    for (const std::string& note : run.notes) {
      text += concat("<p class=\"note\">", runs.size() == 1 ? "" : escaped(run.name) + ": ", escaped(note), "</p>\n");
    }
  };
  if (runs.size() == 1) {
    const RunFiles& run = runs[0];
    const std::string model = run.option("MODEL"), loss = run.derived("loss"), optimizer = run.derived("optimizer");
    text += concat("<p class=\"lead\">", escaped(model), loss.empty() ? "" : concat(" · ", escaped(loss)),
                   optimizer.empty() ? "" : concat(" · ", escaped(optimizer)), "</p>\n");
    add_notes(run);
    text += "<div class=\"figures\">";
    for (const Figure& figure : figures_of(run)) {
      text += concat("<div><span class=\"label\">", figure.label, "</span><strong>", escaped(figure.value),
                     "</strong><span>", escaped(figure.more), "</span></div>");
    }
    return text + "</div>\n";
  }
  const std::string number = concat(runs.size(), " runs");
  if (page_title(runs) != number) text += concat("<p class=\"lead\">", number, "</p>\n");
  for (const RunFiles& run : runs) add_notes(run);
  std::vector<std::string> labels = {"run"};
  for (const RunFiles& run : runs) {
    for (const Figure& figure : figures_of(run)) {
      if (std::find(labels.begin(), labels.end(), figure.label) == labels.end()) labels.push_back(figure.label);
    }
  }
  std::string rows;
  for (const RunFiles& run : runs) {
    const std::vector<Figure> figures = figures_of(run);
    rows += concat("<tr><th>", escaped(run.name), "</th>");
    for (size_t i = 1; i < labels.size(); ++i) {
      const auto found =
          std::find_if(figures.begin(), figures.end(), [&](const Figure& f) { return f.label == labels[i]; });
      rows += cell(found == figures.end() ? "" : found->value, "number");
    }
    rows += "</tr>";
  }
  return text + "<div style=\"margin-top:24px\">" + table("", concat(head(labels, true), "<tbody>", rows, "</tbody>")) +
         "</div>";
}

std::string tables(const std::vector<RunFiles>& runs) {
  if (runs.size() > 1) return options_tables(runs);
  const RunFiles& run = runs[0];
  return class_tables(run) + evaluations_table(run) + options_tables(runs) + memory_table(run) + slowest_nodes(run);
}

}  // namespace onnx_train
