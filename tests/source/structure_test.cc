// Rules for the tables of kernels, operators and functions together.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/device.h"
#include "kernels/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/operators/operators.h"
#include "tests/op_cases/covered.h"
#include "tests/support/paths.h"

namespace onnx_train::structure_test {
namespace {

// True for "RoundToBfloat16", not for "RoundTo".
bool holds_type_layout_or_rounding(const std::string& op) {
  for (const char* word : {"Bfloat16", "BFloat16", "Float16", "Float32", "ChannelsLast", "ChannelsFirst", "Rounded"}) {
    if (op.find(word) != std::string::npos) return true;
  }
  const std::string to = "To";
  const size_t at = op.starts_with("Round") ? op.find(to) : std::string::npos;
  return at != std::string::npos && at + to.size() < op.size();
}

// Element types belong to values; layouts, epilogues and roundings are attributes of nodes.
TEST(Structure, NoOperatorHasATypeALayoutOrARoundingInItsName) {
  std::set<std::string> names;
  for (const Kernel* kernel : Device::cpu().kernels()) names.insert(kernel->op);
  for (const Operator* row : operator_rows()) names.insert(row->op);
  for (const GradientRule* rule : gradient_rules()) names.insert(rule->op);
  for (const auto& rows : {function_rows(), lowering_function_rows()}) {
    for (const FunctionRow* row : rows) names.insert(row->op);
  }
  ASSERT_GT(names.size(), 150u);
  std::string offenders;
  for (const std::string& name : names) {
    if (holds_type_layout_or_rounding(name)) offenders += " " + name;
  }
  EXPECT_EQ(offenders, "");
}

TEST(Structure, ATypeInANameIsFound) {
  for (const char* op : {"Bfloat16Gemm", "ChannelsLastConv", "RoundedBatchNormalization", "RoundToBfloat16",
                         "RoundGradientToBfloat16"}) {
    EXPECT_TRUE(holds_type_layout_or_rounding(op)) << op;
  }
  for (const char* op : {"Round", "RoundTo", "RoundGradientTo", "Gemm"}) {
    EXPECT_FALSE(holds_type_layout_or_rounding(op)) << op;
  }
}

// Each operator of which lowering stores some inputs or outputs in 16 bits has a case that runs it with such operands.
// The cases of products are in op_cases/precision.cc.
TEST(Structure, EveryOperatorOnNarrowOperandsHasACase) {
  std::set<std::string> covered = narrow_storage_operators();
  covered.merge(narrow_recurrences());
  for (const Operator* row : operator_rows()) {
    if (row->narrow_inputs.empty() && row->narrow_outputs.empty()) continue;
    EXPECT_TRUE(row->kind == OperatorKind::kProduct || covered.count(row->op)) << row->op;
  }
}

// Calls f(path from the root of the repository, text) for the sources in these folders.
template <typename F>
void for_each_source(const std::vector<std::string>& folders, const F& f) {
  const std::filesystem::path root = source_folder();
  for (const std::string& folder : folders) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h" && extension != ".cu") continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      f(std::filesystem::relative(entry.path(), root).generic_string(), text.str());
    }
  }
}

// A pass or a session that names the CPU, its threads or its cache lines does not work on another device.
TEST(Structure, OnlyTheFolderOfTheCpuKnowsTheCpu) {
  const std::regex cpu(R"re(Device::cpu\(\)|kernels/cpu/|omp_|#pragma omp|<omp\.h>|\bcpu::)re");
  // The default device and its threads; folding, which computes on the host.
  const std::set<std::string> allowed = {"kernels/device.h",
                                         "kernels/device.cc",
                                         "kernels/host.h",
                                         "kernels/host.cc",
                                         "kernels/lowering/canonical/fold_constants.cc",
                                         "kernels/none/device.cc"};
  std::string offenders;
  int sources = 0;
  for_each_source({"onnx_passes", "kernels", "runtime", "library", "tools"},
                  [&](const std::string& path, const std::string& text) {
                    ++sources;
                    if (path.starts_with("kernels/cpu/") || allowed.count(path)) return;
                    if (std::smatch found; std::regex_search(text, found, cpu))
                      offenders += path + ": " + found.str() + "\n";
                  });
  EXPECT_GT(sources, 300);
  EXPECT_EQ(offenders, "");
}

// What other processors lack, and what oneDNN declares, is in folders of its own.
TEST(Structure, IntrinsicsAndOneDnnStandInTheirFolders) {
  const std::regex intrinsics(R"re(immintrin\.h|\b_mm\d*_\w+|\b__m\d+\w*|\b_tile_\w+|arm_neon\.h)re"),
      onednn(R"re(dnnl)re");
  int here = 0;
  for_each_source({"onnx_passes", "kernels", "runtime", "library", "tools"},
                  [&](const std::string& path, const std::string& text) {
                    std::smatch found;
                    const bool is_x86 = path.starts_with("kernels/cpu/x86/");
                    if (std::regex_search(text, found, intrinsics)) {
                      EXPECT_TRUE(is_x86) << path << ": " << found.str();
                      here += is_x86;
                    }
                    if (std::regex_search(text, found, onednn)) {
                      EXPECT_TRUE(path.starts_with("kernels/cpu/onednn/primitives/")) << path << ": " << found.str();
                    }
                  });
  EXPECT_EQ(here, 2);
}

// The lines of the text outside of comments.
std::string without_comments(const std::string& text) {
  static const std::regex comment(R"re((^|[^:])//[^\n]*)re");
  return std::regex_replace(text, comment, "$1");
}

// Returns the first header of an operating system that the text includes, or function of one that standard headers
// declare, too; "" if there is none.
std::string asks_system(const std::string& text) {
  static const std::regex system(
      R"re(#\s*include\s*<((sys|linux|net|netinet|arpa|mach|asm)/[^>]*|)re"
      R"re((unistd|fcntl|poll|termios|spawn|dlfcn|sched|malloc|netdb|pthread|semaphore|dirent|pwd|grp|glob|fnmatch|regex|ucontext|)re"
      R"re(execinfo|syslog|utime|strings|windows|winsock2|ws2tcpip|psapi|shellapi|io|direct|process)\.h)>|)re"
      R"re(\b(posix_memalign|aligned_alloc|mkdtemp|mkstemp|popen|realpath|setenv|unsetenv|localtime_r|gmtime_r|)re"
      R"re(strsignal|quick_exit)\()re");
  std::smatch found;
  const std::string code = without_comments(text);
  return !std::regex_search(code, found, system) ? "" : found[1].matched ? found[1].str() : found[4].str();
}

// Another system is another folder of platform/: nothing else asks one. What is ported as a whole, or not at all,
// stands here with the reason, and in the table of CONTRIBUTING.md.
TEST(Structure, OnlyPlatformKnowsTheSystem) {
  const std::map<std::string, std::string> others = {
      {"runtime/distribution/sockets/", "sockets"},
      {"runtime/distribution/gloo/", "sockets of Gloo"},
      {"runtime/distribution/mpi/", "MPI's sleep"},
      {"kernels/cuda/", "loads libraries of NVIDIA for Linux"},
      {"kernels/spin_limit/", "the environment before libgomp reads it"},
  };
  std::set<std::string> used;
  std::string offenders;
  for_each_source(
      {"bench", "examples", "include", "kernels", "library", "onnx_passes", "python_bindings", "runtime", "tools"},
      [&](const std::string& path, const std::string& text) {
        const std::string asked = asks_system(text);
        if (asked.empty()) return;
        const auto other = std::ranges::find_if(others, [&](const auto& o) { return path.starts_with(o.first); });
        if (other == others.end()) {
          offenders += path + ": " + asked + "\n";
        } else {
          used.insert(other->first);
        }
      });
  EXPECT_EQ(offenders, "");
  EXPECT_EQ(used.size(), others.size());
}

TEST(Structure, WhatAsksASystemIsFound) {
  EXPECT_EQ(asks_system("#include <sys/stat.h>\n"), "sys/stat.h");
  EXPECT_EQ(asks_system("# include <unistd.h>\n"), "unistd.h");
  EXPECT_EQ(asks_system("#include <windows.h>\n"), "windows.h");
  EXPECT_EQ(asks_system("std::FILE* f = popen(line, mode);  // mkdtemp()\n"), "popen");
  EXPECT_EQ(asks_system("#include <string>\n#include <omp.h>\n#include \"platform/file.h\"\n"), "");
}

// A list of operators' names outside of operators/ is a fact of these operators that belongs into their rows.
TEST(Structure, NoListOfOperatorsStandsOutsideOfTheirRows) {
  std::set<std::string> names;
  for (const Operator* row : operator_rows()) names.insert(row->op);
  const std::regex list(R"re((?:"[A-Z][A-Za-z0-9]+"[,\s]+){4,}"[A-Z][A-Za-z0-9]+")re");
  const std::regex name(R"re("([A-Z][A-Za-z0-9]+)")re");
  std::string offenders;
  for_each_source({"onnx_passes", "kernels", "runtime", "tools"},
                  [&](const std::string& path, const std::string& text) {
                    // Rules of gradients are rows themselves; the other file evaluates shapes.
                    if (path.starts_with("onnx_passes/operator_rows/") || path.starts_with("onnx_passes/gradients/"))
                      return;
                    if (path == "onnx_passes/inference/elements.cc") return;
                    for (std::sregex_iterator found(text.begin(), text.end(), list), end; found != end; ++found) {
                      const std::string items = found->str();
                      int operators = 0;
                      for (std::sregex_iterator item(items.begin(), items.end(), name); item != end; ++item) {
                        operators += static_cast<int>(names.count((*item)[1]));
                      }
                      if (operators >= 5) offenders += path + ": " + items + "\n";
                    }
                  });
  EXPECT_EQ(offenders, "");
}

// Returns the first literal in the text that names an entry point; "" if there is none.
std::string named_entry_point(const std::string& text) {
  // "step" and "accumulate" are also columns of reports, keys of checkpoints and options.
  static const std::regex name(
      R"re("(predict|evaluate|apply|initialize)"|)re"
      R"re((entry\w*|flatten|state_of|run|start|plan\w*)\(([^;"]*, )?"(step|accumulate)"|entry(\.name\(\)|\.text\(\))? [!=]= "|)re"
      R"re([Ee]ntry\w* \w+ = "\w)re");
  std::smatch found;
  const std::string code = without_comments(text);
  return std::regex_search(code, found, name) ? found.str() : "";
}

// Names of entry points stand in one table (onnx_passes/ir/entry.h); all else asks for an Entry.
TEST(Structure, EntryPointsAreNamedInOneTable) {
  const std::map<std::string, std::string> other = {{"onnx_passes/ir/entry.cc", "the table"},
                                                    {"tools/predict.cc", "the command's name"}};
  std::string offenders;
  for_each_source({"onnx_passes", "kernels", "runtime", "library", "tools"},
                  [&](const std::string& path, const std::string& text) {
                    const std::string name = named_entry_point(text);
                    if (!name.empty() && !other.contains(path)) offenders += path + ": " + name + "\n";
                  });
  EXPECT_EQ(offenders, "");
  EXPECT_NE(named_entry_point("session.run(\"step\", inputs);"), "");
  EXPECT_NE(named_entry_point("if (entry == \"accumulate\") return;"), "");
  EXPECT_NE(named_entry_point("return flatten(model, \"step\");"), "");
  EXPECT_NE(named_entry_point("for (auto* e : {\"evaluate\"})"), "");
  EXPECT_EQ(named_entry_point("json[\"step\"] = 1;  // of \"evaluate\""), "");
}

// The types of rows that an operator consists of: its facts, rewrites to and from it, its gradient, body and kernels.
const std::set<std::string> kRowTypes = {"Operator",    "UpgradeRow", "Rewrite",         "GradientRule",
                                         "FunctionRow", "Kernel",     "KnownRow",        "UpdateRow",
                                         "MovementRow", "ForeignRow", "WithoutGradient", "StandardBody"};

// Returns the operators that the text lists by rows, {"Add", ...}, or by keys, table["Add"], of another type.
std::string tables_of_other_rows(const std::set<std::string>& names, const std::string& text) {
  const std::regex rows(R"re(vector<(\w+)>|\b(\w+) \w+\[\]|(map)<|(?:\{|\},)\s*\{"(\w+)"|\w\["(\w+)"\])re");
  std::string type, found;
  for (std::sregex_iterator row(text.begin(), text.end(), rows), end; row != end; ++row) {
    const std::string op = (*row)[4].str() + (*row)[5].str();
    if (op.empty()) {
      type = (*row)[1].str() + (*row)[2].str() + (*row)[3].str();
    } else if (names.count(op) && ((*row)[5].matched || !kRowTypes.count(type))) {
      found += " " + op;
    }
  }
  return found;
}

// Three operators with something else beside each are a column that their rows lack.
TEST(Structure, NoTableHasRowsOfItsOwnForOperators) {
  std::set<std::string> names;
  for (const Operator* row : operator_rows()) names.insert(row->op);
  std::string offenders;
  for_each_source({"onnx_passes", "kernels", "runtime", "library", "tools"},
                  [&](const std::string& path, const std::string& text) {
                    // Activations of gates have the names of operators.
                    if (path.starts_with("onnx_passes/operator_rows/") || path == "onnx_passes/operators/recurrent.cc")
                      return;
                    const std::string found = tables_of_other_rows(names, text);
                    if (std::count(found.begin(), found.end(), ' ') >= 3) offenders += path + ":" + found + "\n";
                  });
  EXPECT_EQ(offenders, "");
}

TEST(Structure, ATableOfOperatorsIsFound) {
  const std::set<std::string> names = {"Add", "Sub", "Conv"};
  EXPECT_EQ(tables_of_other_rows(names, "std::unordered_map<std::string, int> t = {{\"Add\", 1},\n  {\"Sub\", 2}};"),
            " Add Sub");
  EXPECT_EQ(tables_of_other_rows(names, "const CostRow kRows[] = {\n {\"Conv\", 2, f}};"), " Conv");
  EXPECT_EQ(tables_of_other_rows(names, "table[\"Conv\"] = f;"), " Conv");
  EXPECT_EQ(tables_of_other_rows(names, "std::vector<Kernel> k() { return {{\"Conv\", supports, f}}; }"), "");
  EXPECT_EQ(tables_of_other_rows(names, "is_one_of(node, {\"Add\", \"Sub\"})"), "");
}

const std::set<std::string> kParts = {"bench",           "cmake",   "docs",    "examples",    "include",
                                      "kernels",         "library", "models",  "onnx_passes", "platform",
                                      "python_bindings", "runtime", "scripts", "tests",       "tools"};

// Paths from the root of the repository.
std::vector<std::string> files_of_parts() {
  const std::filesystem::path root = source_folder();
  std::vector<std::string> files;
  for (const std::string& part : kParts) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / part)) {
      const std::string path = std::filesystem::relative(entry.path(), root).generic_string();
      if (entry.is_regular_file() && path.find("__pycache__") == path.npos) files.push_back(path);
    }
  }
  return files;
}

// The reader of a folder sees all of it at once. Pages of errors are looked up by their codes.
TEST(Structure, NoFolderHasMoreThanFortyFiles) {
  constexpr int kMostFiles = 40;
  std::map<std::string, int> files;
  for (const std::string& path : files_of_parts()) ++files[path.substr(0, path.rfind('/'))];
  EXPECT_EQ(files.erase("docs/errors"), 1u);
  EXPECT_GT(files.size(), 60u);
  for (const auto& [folder, number] : files) EXPECT_LE(number, kMostFiles) << folder;
}

// Tests are compiled in groups: without a namespace for each file, names of two files collide.
TEST(Structure, EachFileOfTestsHasANamespaceOfItsName) {
  const std::set<std::string> programs = {"tests/mpi/mpi_ranks_test.cc", "tests/runtime/library_test.cc"};
  int files = 0;
  for_each_source({"tests"}, [&](const std::string& path, const std::string& text) {
    if (!path.ends_with("_test.cc") || programs.count(path)) return;
    ++files;
    const std::string name = std::filesystem::path(path).stem();
    EXPECT_TRUE(std::regex_search(text, std::regex("namespace onnx_train(::\\w+)?::" + name + " \\{"))) << path;
  });
  EXPECT_GT(files, 100);
}

bool has_suffix(const std::string& path, const std::set<std::string>& suffixes) {
  return suffixes.count(std::filesystem::path(path).extension()) > 0;
}

// The sources and folders of ours that a comment names: "support/outline.h", "kernels/cpu/", "pages.py". Parts of
// patterns and of other paths, such as FOLDER/<entry>.h or /usr/include/omp.h, are left out.
std::vector<std::string> paths_in(const std::string& comment) {
  const auto in_path = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/'; };
  std::vector<std::string> paths;
  auto at = comment.begin();
  while ((at = std::find_if(at, comment.end(), in_path)) != comment.end()) {
    const char before = at == comment.begin() ? ' ' : at[-1];
    const auto end = std::find_if_not(at, comment.end(), in_path);
    const char after = end == comment.end() ? ' ' : *end;
    std::string path(at, end);
    at = end;
    while (path.ends_with('.')) path.pop_back();  // of a sentence
    if (path.empty() || path[0] == '.' || path[0] == '/' || path[0] == '-') continue;
    if (std::string("*<>{}$~:").find(before) != std::string::npos) continue;
    if (std::string("*<>{}$~(").find(after) != std::string::npos) continue;
    const bool in_part = path.find('/') != path.npos && kParts.count(path.substr(0, path.find('/'))) > 0;
    if (in_part || has_suffix(path, {".cc", ".h", ".hpp", ".cu", ".cuh", ".py", ".proto"})) paths.push_back(path);
  }
  return paths;
}

// Lines of a source; both "" for a file that is none.
struct SourceText {
  std::string comments, code;
};

SourceText read_source(const std::string& path) {
  const bool is_cpp = has_suffix(path, {".cc", ".h", ".hpp", ".cu", ".cuh"});
  const bool is_python = has_suffix(path, {".py"});
  if (!is_cpp && !is_python && !has_suffix(path, {".cmake", ".sh"}) && !path.starts_with("scripts/")) return {};
  std::ifstream file(source_folder() / path);
  SourceText source;
  bool in_docstring = false;
  for (std::string line; std::getline(file, line);) {
    const size_t quotes = is_python ? line.find("\"\"\"") : line.npos;
    const size_t mark = line.find(is_cpp ? "//" : "#");
    const bool is_comment =
        mark != line.npos && (mark == 0 || std::isspace(static_cast<unsigned char>(line[mark - 1])));
    if (in_docstring || quotes != line.npos) {
      source.comments += line + "\n";
    } else {
      if (is_comment) source.comments += line.substr(mark + (is_cpp ? 2 : 1)) + "\n";
      source.code += line.substr(0, is_comment ? mark : line.npos) + "\n";
    }
    if (quotes != line.npos && line.find("\"\"\"", quotes + 3) == line.npos) in_docstring = !in_docstring;
  }
  return source;
}

// A path may begin below the root: "support/outline.h".
TEST(Structure, EachSourceThatACommentNamesExists) {
  const std::set<std::string> of_others = {"onnx/reference/ops/op_resize.py",
                                           "torch/csrc/distributed/c10d/TCPStoreBackend.hpp",
                                           "cuda_runtime.h",
                                           "ImageEnhance.py",
                                           "functional.py",
                                           "omp.h"};
  const std::vector<std::string> files = files_of_parts();
  std::set<std::string> known = of_others;
  for (const std::string& file : files) {
    for (std::filesystem::path whole = file; !whole.empty(); whole = whole.parent_path()) {  // and its folders
      std::string path = whole.generic_string();
      while (known.insert(path).second && path.find('/') != path.npos) path.erase(0, path.find('/') + 1);
    }
  }
  std::string offenders;
  int named = 0;
  for (const std::string& file : files) {
    for (std::string path : paths_in(read_source(file).comments)) {
      ++named;
      if (path.ends_with('/')) path.pop_back();
      if (!known.count(path)) offenders += file + ": " + path + "\n";
    }
  }
  EXPECT_GT(named, 300);
  EXPECT_EQ(offenders, "");
}

TEST(Structure, APathInACommentIsFound) {
  const std::vector<std::string> found = paths_in("see support/outline.h, (kernels/cpu/) and pages.py.");
  EXPECT_EQ(found, (std::vector<std::string>{"support/outline.h", "kernels/cpu/", "pages.py"}));
  EXPECT_EQ(paths_in("/usr/include/omp.h, FOLDER/<entry>.h, kernels/*.cc, 1/n, dy/dx, https://a.b/c.py").size(), 0u);
}

bool in_word(unsigned char c) { return std::isalnum(c) || c == '_'; }

// Calls f(word) for each name and number of a text.
template <typename F>
void for_each_word(const std::string& text, const F& f) {
  for (auto at = text.begin(); (at = std::find_if(at, text.end(), in_word)) != text.end();) {
    const auto end = std::find_if_not(at, text.end(), in_word);
    f(std::string(at, end));
    at = end;
  }
}

// The names of code that a comment has in backticks: those of `width`, `Device::cpu()`, `settings.import`, not of
// `a + b`, `--name=VALUE` and ``"text"``.
std::vector<std::string> names_in(const std::string& comment) {
  static const std::regex name(R"re([A-Za-z_]\w*((::|\.)[A-Za-z_]\w*)*(\([^)]*\))?)re");
  std::vector<std::string> names;
  std::istringstream lines(comment);
  for (std::string line; std::getline(lines, line);) {
    for (size_t open = line.find('`'); open != line.npos;) {
      const size_t close = line.find('`', open + 1);
      if (close == line.npos) break;
      const std::string quoted = line.substr(open + 1, close - open - 1);
      if (std::regex_match(quoted, name)) {
        for_each_word(quoted.substr(0, quoted.find('(')), [&](const std::string& word) { names.push_back(word); });
      }
      open = line.find('`', close + 1);
    }
  }
  return names;
}

// A name that is gone misleads: a comment names what some source declares or uses.
TEST(Structure, EachNameInBackticksOfACommentExists) {
  const std::set<std::string> of_examples = {"name_2", "name_3"};
  std::unordered_set<std::string> words;
  std::map<std::string, std::string> comments;
  for (const std::string& file : files_of_parts()) {
    SourceText source = read_source(file);
    for_each_word(source.code, [&](std::string&& word) { words.insert(std::move(word)); });
    comments[file] = std::move(source.comments);
  }
  std::string offenders;
  int named = 0;
  for (const auto& [file, comment] : comments) {
    for (const std::string& name : names_in(comment)) {
      ++named;
      if (!words.count(name) && !of_examples.count(name)) offenders += file + ": " + name + "\n";
    }
  }
  EXPECT_GT(named, 1000);
  EXPECT_EQ(offenders, "");
}

TEST(Structure, ANameInACommentIsFound) {
  EXPECT_EQ(names_in("`width` of `Device::cpu()` and `shape.m`"),
            (std::vector<std::string>{"width", "Device", "cpu", "shape", "m"}));
  EXPECT_EQ(names_in("`a + b`, `--name=VALUE`, `labels_<prediction>`, `f`\n`g").size(), 1u);
}

// Arrows between the parts run one way: platform <- passes <- kernels <- runtime <- library, tools.
TEST(Structure, APartIncludesNothingOfThoseAboveIt) {
  const std::vector<std::pair<std::string, std::regex>> parts = {
      {"platform", std::regex(R"re(#include "(?!platform/))re")},
      {"onnx_passes/ir", std::regex(R"re(#include "onnx_passes/(?!ir/))re")},
      {"onnx_passes", std::regex(R"re(#include "(kernels|runtime|library|tools|tests)/)re")},
      {"kernels", std::regex(R"re(#include "(runtime|library|tools|tests/(?!cuda_on_host/gpu_on_host\.h)))re")},
      {"runtime", std::regex(R"re(#include "(library|tools|tests)/)re")}};
  for (const auto& [part, above] : parts) {
    for_each_source({part}, [&above = above](const std::string& path, const std::string& text) {
      std::smatch found;
      EXPECT_FALSE(std::regex_search(text, found, above)) << path << ": " << found.str();
    });
  }
}

// The folders of each part, from the bottom up: a folder includes those to its left alone. "." holds the files of the
// part itself.
const std::map<std::string, std::string> kFolders = {
    {"platform", ". linux posix windows"},
    {"onnx_passes",
     "ir text io operators inference functions operator_rows model pipeline foreign quantization precision gradients "
     "weights loss metrics recognize training import adapt tokens distribution derivatives ."},
    {"kernels",
     "math spin_limit . choices functions geometry/indexing geometry geometry/fusion "
     "lowering/support lowering/types lowering/memory lowering/updates lowering/layout "
     "lowering/attention lowering/products lowering/gather lowering/fusion lowering/canonical lowering/storage "
     "lowering "
     "cpu/support cpu/elementwise cpu/movement cpu/reduction cpu/normalization cpu/pooling cpu/sampling cpu/training "
     "cpu/x86 cpu/products cpu/attention cpu/convolution cpu/onednn/none cpu/onednn/primitives cpu/recurrent cpu/fused "
     "cpu/collective cpu none "
     "cuda/support cuda/choices cuda/movement cuda/reduction cuda/fused cuda/normalization cuda/pooling cuda/sampling "
     "cuda/training cuda/products cuda/attention cuda/convolution cuda/recurrent cuda/collective cuda"},
    {"runtime",
     "support data data/images data/images/decoders data/images/minimal data/tokenizer data/files data/texts "
     "data/chats data/tables "
     "distribution distribution/sockets distribution/no_sockets distribution/gloo distribution/mpi plan session "
     "data/loading models onnxruntime training generation runs"},
    {"tools", "report tensorboard . run_report dashboard minimal opt fit sweep main"}};

TEST(Structure, AFolderIncludesNothingOfThoseAboveIt) {
  const std::regex include(R"re(#include "([^"]*)/[^/"]*")re");
  int includes = 0;
  for (const auto& [part, folders] : kFolders) {
    std::map<std::string, int> height;
    std::istringstream words(folders);
    for (std::string folder; words >> folder;) {
      const int number = static_cast<int>(height.size());
      height[folder == "." ? part : part + "/" + folder] = number;
    }
    for_each_source({part}, [&](const std::string& path, const std::string& text) {
      const std::string own = std::filesystem::path(path).parent_path().generic_string();
      ASSERT_TRUE(height.count(own)) << own << " is not in the order of folders";
      for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
        const std::string other = (*it)[1].str();
        if (other != part && !other.starts_with(part + "/")) continue;
        ++includes;
        ASSERT_TRUE(height.count(other)) << path << ": " << it->str();
        EXPECT_LE(height.at(other), height.at(own)) << path << ": " << it->str();
      }
    });
  }
  EXPECT_GT(includes, 3000);
}

// Kernels, their geometry and their cost do not know how a plan came to be. Only the devices themselves do, which say
// what lowering may rely on.
TEST(Structure, KernelsIncludeNothingOfLowering) {
  const std::regex lowering(R"re(#include "kernels/lowering/[^"]*")re");
  int includes = 0;
  for_each_source({"kernels"}, [&](const std::string& path, const std::string& text) {
    const bool may = path.starts_with("kernels/lowering/") || path.starts_with("kernels/device.") ||
                     path == "kernels/cpu/device.cc" || path == "kernels/cuda/device.cc" ||
                     path == "kernels/none/device.cc";
    if (std::smatch found; std::regex_search(text, found, lowering)) {
      ++includes;
      EXPECT_TRUE(may) << path << ": " << found.str();
    }
  });
  EXPECT_GT(includes, 20);
}

// Whether the text names a function elsewhere than where it declares or defines it, after a type that ends with >.
bool is_used(const std::string& name, const std::string& text) {
  for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += name.size()) {
    const char before = text[at - 1], after = text[at + name.size()];
    const auto is_word = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); };
    if (!is_word(before) && !is_word(after) && text.substr(at - 2, 2) != "> ") return true;
  }
  return false;
}

// A family of rows that is not in the list of its registry would be left out in silence: nothing refers to it.
TEST(Structure, EveryFamilyIsInTheListOfItsRegistry) {
  const std::regex definition(R"re(\nstd::vector<(?:Operator|GradientRule|FunctionRow|OpCase|Kernel)> (\w+)\(\))re");
  int families = 0;
  for (const auto& [folder, list, suffix] :
       std::vector<std::array<std::string, 3>>{{"onnx_passes/operator_rows", "", "operators"},
                                               {"onnx_passes/functions", "", "functions"},
                                               {"onnx_passes/gradients", "", "rules"},
                                               {"kernels/functions", "", "functions"},
                                               {"kernels/cpu", "/support", "kernels"},
                                               {"kernels/cuda", "/support", "kernels"},
                                               {"tests/op_cases", "", "cases"}}) {
    std::string all;
    for_each_source({folder}, [&](const std::string&, const std::string& text) { all += "\n" + text; });
    std::ostringstream rows;
    rows << std::ifstream(source_folder() / (folder + list) / "families.def").rdbuf();
    for (std::sregex_iterator found(all.begin(), all.end(), definition), end; found != end; ++found) {
      const std::string name = (*found)[1];
      const std::string family = name.substr(0, name.rfind('_'));
      const bool is_listed = rows.str().find("(" + family + ")") != std::string::npos && name == family + "_" + suffix;
      EXPECT_TRUE(is_listed || is_used(name, all)) << folder << ": " << name;
      families += is_listed;
    }
  }
  EXPECT_GT(families, 120);
}

}  // namespace
}  // namespace onnx_train::structure_test
