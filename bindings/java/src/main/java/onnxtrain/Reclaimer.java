package onnxtrain;

import java.lang.ref.PhantomReference;
import java.lang.ref.ReferenceQueue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** Runs an action after an object has become unreachable: java.lang.ref.Cleaner, which Java 8 and Android lack. */
final class Reclaimer extends PhantomReference<Object> {
  private static final ReferenceQueue<Object> QUEUE = new ReferenceQueue<>();
  private static final Set<Reclaimer> PENDING = ConcurrentHashMap.newKeySet();

  static {
    final Thread thread = new Thread(Reclaimer::reclaim, "onnx-train reclaimer");
    thread.setDaemon(true);
    thread.start();
  }

  private final Runnable action;

  private Reclaimer(Object owner, Runnable action) {
    super(owner, QUEUE);
    this.action = action;
  }

  /** The action must not refer to the owner; what it refers to stays reachable until then. */
  static void register(Object owner, Runnable action) {
    PENDING.add(new Reclaimer(owner, action));
  }

  private static void reclaim() {
    while (true) {
      try {
        final Reclaimer reclaimer = (Reclaimer) QUEUE.remove();
        PENDING.remove(reclaimer);
        reclaimer.action.run();
      } catch (InterruptedException ignored) {
        // The thread belongs to this class alone, and ends with the process.
      }
    }
  }
}
