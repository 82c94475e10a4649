// What the folders of platform/ promise beyond what their callers test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "platform/library.h"
#include "platform/lock.h"
#include "platform/mapping.h"
#include "platform/process.h"
#include "platform/replacement.h"

namespace onnx_train::platform_test {
namespace {

namespace fs = std::filesystem;

std::string new_folder(const std::string& name) {
  const std::string folder = testing::TempDir() + "platform_" + name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Platform, AReplacementAppearsWhenItIsCompleteAndElseLeavesNothing) {
  const std::string folder = new_folder("replacement"), path = folder + "/a b.bin";
  write(path, "old");
  {
    platform::Replacement left;
    ASSERT_TRUE(left.create(folder, "a b.bin"));
    ASSERT_TRUE(left.write("new", 3));
    EXPECT_EQ(names_in(folder).size(), 2u);
    EXPECT_EQ(read(path), "old");
  }
  EXPECT_THAT(names_in(folder), testing::ElementsAre("a b.bin"));
  EXPECT_EQ(read(path), "old");

  platform::Replacement file;
  ASSERT_TRUE(file.create(folder, "a b.bin"));
  ASSERT_TRUE(file.take_permissions(path));
  ASSERT_TRUE(file.write("new", 3));
  ASSERT_TRUE(file.skip(5));
  ASSERT_TRUE(file.put_in_place(path));
  EXPECT_EQ(read(path), std::string("new\0\0\0\0\0", 8));
  EXPECT_THAT(names_in(folder), testing::ElementsAre("a b.bin"));
}

TEST(Platform, AReplacementInAFolderThatIsNotThereSaysSo) {
  platform::Replacement file;
  errno = 0;
  EXPECT_FALSE(file.create(testing::TempDir() + "platform_absent", "a"));
  EXPECT_EQ(errno, ENOENT);
}

TEST(Platform, AReplacementSharesAFileByEitherWay) {
  const std::string folder = new_folder("share");
  write(folder + "/from", "contents");
  platform::Replacement file;
  ASSERT_TRUE(file.create(folder, "to"));
  ASSERT_TRUE(file.share(folder + "/from"));
  ASSERT_TRUE(file.put_in_place(folder + "/to"));
  EXPECT_EQ(read(folder + "/to"), "contents");
  EXPECT_THAT(names_in(folder), testing::ElementsAre("from", "to"));
  EXPECT_FALSE(platform::Replacement().share(folder + "/absent"));
}

TEST(Platform, AnEntryIsNotReachedThroughALink) {
  const std::string folder = new_folder("entry");
  fs::create_directory(folder + "/below");
  write(folder + "/below/file", "x");
  fs::create_symlink("below/file", folder + "/link");
  fs::create_directory_symlink("below", folder + "/folder");
  const platform::File open = platform::open_folder(folder);
  ASSERT_TRUE(open.is_open());
  EXPECT_FALSE(platform::open_entry(open, "link", /*is_folder=*/false).is_open());
  EXPECT_EQ(errno, ELOOP);
  EXPECT_FALSE(platform::open_entry(open, "folder", /*is_folder=*/true).is_open());
  EXPECT_THAT(errno, testing::AnyOf(ELOOP, ENOTDIR));
  EXPECT_FALSE(platform::open_entry(open, "absent", /*is_folder=*/false).is_open());
  EXPECT_EQ(errno, ENOENT);
  const platform::File below = platform::open_entry(open, "below", /*is_folder=*/true);
  ASSERT_TRUE(below.is_open());
  const platform::File file = platform::open_entry(below, "file", /*is_folder=*/false);
  ASSERT_TRUE(file.is_open());
  EXPECT_TRUE(file.status()->is_regular);
  EXPECT_EQ(file.status()->size, 1u);
  EXPECT_FALSE(platform::open_folder(folder + "/below/file").is_open());
}

TEST(Platform, ReadingSomeEndsAtTheEndOfTheFile) {
  const std::string path = new_folder("some") + "/file";
  write(path, "abcdef");
  const platform::File file = platform::open_to_read(path);
  char text[8] = {};
  EXPECT_EQ(file.read_some(4, 8, text), 2);
  EXPECT_STREQ(text, "ef");
  EXPECT_EQ(file.read_some(6, 8, text), 0);
  EXPECT_FALSE(file.read(4, 3, text));
  EXPECT_TRUE(file.read(4, 2, text));
  EXPECT_LT(platform::File().read_some(0, 1, text), 0);
}

TEST(Platform, ALockIsSeenThroughAnotherOpeningAndEndsWithTheFile) {
  const std::string path = new_folder("lock") + "/log";
  platform::File own = platform::open_log(path);
  ASSERT_TRUE(own.is_open());
  const platform::File other = platform::open_log(path), reads = platform::open_to_read(path);
  EXPECT_FALSE(platform::is_locked(reads));
  EXPECT_TRUE(platform::lock_file(own));
  EXPECT_TRUE(platform::lock_file(own));  // once more is the same lock
  EXPECT_FALSE(platform::is_locked(own));
  EXPECT_TRUE(platform::is_locked(reads));
  EXPECT_FALSE(platform::lock_file(other));
  EXPECT_TRUE(own.close_now());
  EXPECT_FALSE(platform::is_locked(reads));
  EXPECT_TRUE(platform::lock_file(other));
}

TEST(Platform, AFolderIsLockedOnce) {
  const std::string folder = new_folder("folder");
  platform::File own = platform::open_folder(folder);
  const platform::File other = platform::open_folder(folder);
  EXPECT_TRUE(platform::lock_folder(own));
  EXPECT_FALSE(platform::lock_folder(other));
  own = platform::File();
  EXPECT_TRUE(platform::lock_folder(other));
}

TEST(Platform, ABlockIsRepeatedFromAnyOfItsPages) {
  const size_t page = platform::page_bytes();
  platform::File block = platform::memory_file("block");
  for (const char c : {'a', 'b', 'c'}) ASSERT_TRUE(block.write(std::string(page, c).data(), page));
  const auto* data = static_cast<const char*>(platform::map_repeated(block, 3 * page, 2 * page, 6 * page));
  ASSERT_NE(data, nullptr);
  std::string first;
  for (size_t i = 0; i < 6; ++i) first += data[i * page];
  EXPECT_EQ(first, "cabcab");
  platform::unmap(data, 6 * page);
}

TEST(Platform, ZerosAreWritableAndAligned) {
  const size_t bytes = size_t{3} << 20;
  auto* data = static_cast<char*>(platform::map_zeros(bytes));
  ASSERT_NE(data, nullptr);
  EXPECT_TRUE(std::all_of(data, data + bytes, [](char c) { return c == 0; }));
  std::memset(data, 1, bytes);
  platform::unmap(data, bytes);
  EXPECT_EQ(platform::map_zeros(SIZE_MAX / 2), nullptr);
  void* const aligned = platform::allocate_aligned(4096, 100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned) % 4096, 0u);
  platform::free_aligned(aligned);
}

TEST(Platform, ALineOfTheShellGivesItsStatusAndWhatItSaysOfErrors) {
  const auto [status, said] = platform::run_line("echo out; echo err >&2; exit 3");
  EXPECT_NE(status, 0);
  EXPECT_EQ(said, "err\n");
  EXPECT_EQ(platform::run_line("true").first, 0);
}

// The program is this one, which ends at once with these words.
TEST(Platform, AProcessTellsHowItHasEnded) {
  const std::string path = new_folder("process") + "/log";
  const std::vector<std::string> lists = {"unit_tests", "--gtest_list_tests",
                                          "--gtest_filter=Platform.AFolderIsLockedOnce"};
  const platform::File log = platform::open_log(path);
  const platform::Child child = platform::start_apart(lists, log.descriptor(), "no program\n");
  ASSERT_GT(child, 0);
  const platform::ProcessEnd end = platform::wait_for(child);
  EXPECT_EQ(end.status, 0);
  EXPECT_EQ(end.signal, 0);
  EXPECT_THAT(read(path), testing::HasSubstr("AFolderIsLockedOnce"));

  const platform::Child rank =
      platform::start_rank({"unit_tests", "--gtest_filter=Platform.NONE", "--gtest_brief=1"}, {"PLATFORM_TEST=1"});
  ASSERT_GT(rank, 0);
  platform::ProcessEnd of_rank;
  while (platform::ask_for_end(rank, &of_rank) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(of_rank.status, 0);
  EXPECT_LT(platform::ask_for_end(rank, &of_rank), 0);  // it has been waited for
}

TEST(Platform, ALibraryThatIsNotThereSaysWhy) {
  EXPECT_EQ(platform::open_library("libplatform_absent.so"), nullptr);
  EXPECT_THAT(platform::library_error(), testing::HasSubstr("libplatform_absent.so"));
  EXPECT_THAT(platform::file_of(reinterpret_cast<const void*>(&new_folder)), testing::HasSubstr("unit_tests"));
}

}  // namespace
}  // namespace onnx_train::platform_test
