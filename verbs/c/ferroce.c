/*
 * libferroce.a: the functions of ferroce.h, for programs that start with any libibverbs. Each looks for the function of the same name in the
 * libibverbs that the loader found, and returns EOPNOTSUPP if that is not Ferroce's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <ferroce.h>

/* By the version, so that it is never the program's own function. */
static void *find(const char *name)
{
	return dlvsym(RTLD_DEFAULT, name, "FERROCE_1.0");
}

static int missing(void)
{
	errno = EOPNOTSUPP;
	return EOPNOTSUPP;
}

unsigned ferroce_version(void)
{
	unsigned (*version)(void);
	*(void **)&version = find("ferroce_version");
	return version ? version() : 0;
}

int ferroce_set_congestion(struct ibv_qp *qp, const char *choice)
{
	int (*set)(struct ibv_qp *, const char *);
	*(void **)&set = find("ferroce_set_congestion");
	return set ? set(qp, choice) : missing();
}

int ferroce_query_congestion(struct ibv_qp *qp, struct ferroce_congestion *into)
{
	int (*query)(struct ibv_qp *, struct ferroce_congestion *);
	*(void **)&query = find("ferroce_query_congestion");
	return query ? query(qp, into) : missing();
}

int ferroce_qp_cause(struct ibv_qp *qp, struct ferroce_cause *into)
{
	int (*cause)(struct ibv_qp *, struct ferroce_cause *);
	*(void **)&cause = find("ferroce_qp_cause");
	return cause ? cause(qp, into) : missing();
}
