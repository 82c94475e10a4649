package onnxtrain;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Loads libonnx_train_jni.so, which finds libonnx_train.so beside it. In this order: the folder of the property
 * onnxtrain.library.path; java.library.path, which on Android is the folder that jniLibs/arm64-v8a becomes;
 * natives/SYSTEM in the jar, whose files are written once to a folder of the user's cache.
 */
final class Loader {
  private static final String NAME = "onnx_train_jni";

  private Loader() {}

  static void load() {
    final String folder = System.getProperty("onnxtrain.library.path");
    if (folder != null) {
      System.load(new File(folder, System.mapLibraryName(NAME)).getAbsolutePath());
      return;
    }
    if (System.getProperty("java.vm.name", "").equals("Dalvik")) {
      System.loadLibrary(NAME);
      return;
    }
    final String natives = "/natives/" + system() + "/";
    try (InputStream list = Loader.class.getResourceAsStream(natives + "files.txt")) {
      if (list != null && !isOnPath()) {
        System.load(extracted(natives, list).resolve(System.mapLibraryName(NAME)).toString());
        return;
      }
    } catch (IOException error) {
      throw explained("the natives cannot be written to " + error.getMessage() + "; the property onnxtrain.cache.path names another folder for "
          + "them, onnxtrain.library.path one that has them", error);
    }
    try {
      System.loadLibrary(NAME);
    } catch (UnsatisfiedLinkError error) {
      throw explained("the jar has no natives of " + system() + ", and neither the property onnxtrain.library.path nor "
          + "java.library.path leads to " + System.mapLibraryName(NAME) + ": " + error.getMessage(), error);
    }
  }

  private static UnsatisfiedLinkError explained(String text, Throwable cause) {
    final UnsatisfiedLinkError error = new UnsatisfiedLinkError(text);
    error.initCause(cause);
    return error;
  }

  /** "linux-x86_64" or "linux-aarch64". */
  static String system() {
    final String machine = System.getProperty("os.arch").toLowerCase(Locale.ROOT);
    final String name = System.getProperty("os.name").toLowerCase(Locale.ROOT);
    return (name.startsWith("linux") ? "linux" : name.replaceAll("\\s.*", "")) + "-"
        + (machine.equals("amd64") ? "x86_64" : machine);
  }

  private static boolean isOnPath() {
    for (String folder : System.getProperty("java.library.path", "").split(File.pathSeparator)) {
      if (!folder.isEmpty() && new File(folder, System.mapLibraryName(NAME)).isFile()) return true;
    }
    return false;
  }

  /** A folder with the files of the list, whose first line has their version and checksum. */
  private static Path extracted(String natives, InputStream list) throws IOException {
    final List<String> names = new ArrayList<>();
    final BufferedReader lines = new BufferedReader(new InputStreamReader(list, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) names.add(line);
    final String version = names.remove(0);
    IOException failure = null;
    for (Path folder : folders(version)) {
      try {
        own(folder);
        fill(folder, natives, names);
        return folder;
      } catch (IOException error) {
        if (failure == null) failure = new IOException(folder + ": " + error, error);
      }
    }
    throw failure;
  }

  /** That which the user has chosen; or one in the cache of the command and, where that cannot be written, a temporary one. */
  private static List<Path> folders(String version) throws IOException {
    final String name = "java-" + version;
    final String chosen = System.getProperty("onnxtrain.cache.path", System.getenv("ONNX_TRAIN_CACHE"));
    if (chosen != null && !chosen.isEmpty()) return Collections.singletonList(Paths.get(chosen, name).toAbsolutePath());
    final List<Path> folders = new ArrayList<>();
    final String cache = System.getenv("XDG_CACHE_HOME");
    final Path home = Paths.get(System.getProperty("user.home"));  // "?" of a user without one
    if (cache != null && !cache.isEmpty()) {
      folders.add(Paths.get(cache, "onnx-train", name).toAbsolutePath());
    } else if (Files.isDirectory(home)) {
      folders.add(home.resolve(".cache").resolve("onnx-train").resolve(name).toAbsolutePath());
    }
    folders.add(Paths.get(System.getProperty("java.io.tmpdir"), "onnx-train-" + user() + "-" + name).toAbsolutePath());
    return folders;
  }

  private static Object user() throws IOException {
    return Files.getAttribute(Paths.get("/proc/self"), "unix:uid");
  }

  /** Makes the folder where there is none. Another user could put a library into one that is not this user's alone. */
  private static void own(Path folder) throws IOException {
    if (!Files.isDirectory(folder.getParent())) Files.createDirectories(folder.getParent());
    try {
      Files.createDirectory(folder, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
    } catch (FileAlreadyExistsException exists) {
      final Map<String, Object> is = Files.readAttributes(folder, "unix:uid,mode", LinkOption.NOFOLLOW_LINKS);
      if (((int) is.get("mode") & 0170022) != 0040000 || !is.get("uid").equals(user())) {  // a folder, without g+w and o+w
        throw new IOException("it is no folder that this user alone may write to");
      }
    }
  }

  /** Files get their name when they are complete and on the disk. The lock of a process that is killed ends with it. */
  private static void fill(Path folder, String natives, List<String> names) throws IOException {
    if (names.stream().allMatch(name -> Files.exists(folder.resolve(name)))) return;
    final Path part = folder.resolve("part");
    try (FileChannel file = FileChannel.open(folder.resolve("lock"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
      file.lock();  // until the file is closed
      for (String name : names) {
        if (Files.exists(folder.resolve(name))) continue;
        write(natives + name, part);
        Files.move(part, folder.resolve(name), StandardCopyOption.ATOMIC_MOVE);
      }
    }
  }

  private static void write(String resource, Path path) throws IOException {
    try (InputStream file = Loader.class.getResourceAsStream(resource);
        FileChannel written = FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.WRITE,
            StandardOpenOption.TRUNCATE_EXISTING)) {
      if (file == null) throw new IOException("the jar has no " + resource);
      final byte[] block = new byte[1 << 16];
      for (int count = file.read(block); count >= 0; count = file.read(block)) written.write(ByteBuffer.wrap(block, 0, count));
      written.force(true);
    } catch (IOException error) {
      Files.deleteIfExists(path);
      throw error;
    }
  }
}
