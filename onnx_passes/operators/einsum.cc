#include "onnx_passes/operators/einsum.h"

#include <algorithm>
#include <cctype>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr const char* kEllipsis = "...";

bool contains(const std::string& text, char c) { return text.find(c) != std::string::npos; }

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// The letters of a term without its ellipsis.
std::string letters_of(const Node& node, std::string term) {
  if (const size_t dots = term.find(kEllipsis); dots != std::string::npos) term.erase(dots, 3);
  for (char c : term) {
    if (!std::isalpha(static_cast<unsigned char>(c)))
      fail(node.label(), ": its equation '", node.attr("equation", ""), "' has '", c, "' where a letter should be");
  }
  return term;
}

// `term` with its ellipsis replaced by the last letters of `names`, so that it has `rank` letters.
std::string written_out(const std::string& term, const std::string& names, size_t rank) {
  const size_t dots = term.find(kEllipsis);
  if (dots == std::string::npos) return term;
  const size_t hidden = rank - (term.size() - 3);
  return term.substr(0, dots) + names.substr(names.size() - hidden) + term.substr(dots + 3);
}

// Letters that occur once, in alphabetical order.
std::string implicit_output(const std::string& letters) {
  std::string once;
  for (char c : letters) {
    if (std::count(letters.begin(), letters.end(), c) == 1) once += c;
  }
  std::sort(once.begin(), once.end());
  return once;
}

}  // namespace

std::string Einsum::equation() const {
  std::string text;
  for (size_t i = 0; i < inputs.size(); ++i) text += (i ? "," : "") + inputs[i];
  return text + "->" + output;
}

Einsum parse_einsum(const Node& node) {
  std::string text = node.attr("equation", "");
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  const size_t arrow = text.find("->");
  const auto terms = split_at_commas(text.substr(0, arrow));
  if (static_cast<int>(terms.size()) != node.num_inputs())
    fail(node.label(), ": its equation '", text, "' names ", terms.size(), " inputs of ", node.num_inputs());

  std::string letters;
  size_t hidden = 0;  // axes that the longest ellipsis stands for
  for (size_t i = 0; i < terms.size(); ++i) {
    const std::string own = letters_of(node, terms[i]);
    const auto rank = static_cast<size_t>(node.input(static_cast<int>(i))->rank());
    const bool ellipsis = own.size() != terms[i].size();
    if (ellipsis ? rank < own.size() : rank != own.size())
      fail(node.label(), ": its input ", i, " has ", rank, " axes; the equation says '", terms[i], "'");
    if (ellipsis) hidden = std::max(hidden, rank - own.size());
    letters += own;
  }
  const std::string after = arrow == std::string::npos ? kEllipsis + implicit_output(letters) : text.substr(arrow + 2);
  const std::string shown = letters_of(node, after);
  for (size_t i = 0; i < shown.size(); ++i) {
    if (!contains(letters, shown[i]) || contains(shown.substr(0, i), shown[i]))
      fail(node.label(), ": '", shown[i], "' in the output of '", text, "' must occur there once, and in an input");
  }

  std::string names;
  for (const char* c = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"; *c && names.size() < hidden; ++c) {
    if (!contains(letters, *c)) names += *c;
  }
  if (names.size() < hidden) fail(node.label(), ": its equation needs more letters than there are");
  Einsum einsum;
  for (size_t i = 0; i < terms.size(); ++i) {
    einsum.inputs.push_back(written_out(terms[i], names, static_cast<size_t>(node.input(static_cast<int>(i))->rank())));
  }
  einsum.output = written_out(after, names, hidden + shown.size());
  return einsum;
}

}  // namespace onnx_train
