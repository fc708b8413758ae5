/* Keeps a server on loopback when it has no flag for that.
 *
 * DynamoDB Local and both Kinesis emulators listen on every address of the machine. Preloaded into
 * them, this turns "any address" into 127.0.0.1 and leaves every other address as it is. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int bind(int fd, const struct sockaddr *address, socklen_t length) {
  if (address && address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
    struct sockaddr_in v4;
    memcpy(&v4, address, sizeof v4);
    if (v4.sin_addr.s_addr == htonl(INADDR_ANY)) v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return (int)syscall(SYS_bind, fd, &v4, sizeof v4);
  }
  if (address && address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
    struct sockaddr_in6 v6;
    memcpy(&v6, address, sizeof v6);
    /* A socket of both families: ::ffff:127.0.0.1 keeps it reachable where clients look for it. */
    if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) {
      static const unsigned char mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
      memcpy(&v6.sin6_addr, mapped, sizeof mapped);
    }
    return (int)syscall(SYS_bind, fd, &v6, sizeof v6);
  }
  return (int)syscall(SYS_bind, fd, address, length);
}
