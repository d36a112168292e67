/* How a kernel lets another thread do one of two parts of its work, if the caller knows of one. */
#ifndef SHARDCORE_SHARE_H
#define SHARDCORE_SHARE_H

/* Does part 0 or part 1 of some work. */
typedef void (*sc_part)(void *work, int part);

/* Does both parts of some work, each in any thread, and returns 1 when both are done; or 0, having done
   nothing, where it has no thread for such work. Without a part returns whether there may be one. */
typedef int (*sc_sharing)(sc_part part, void *work);

/* By this name a capsule holds a function of that type. */
#define SC_SHARING "shardcore.sharing"

#endif
