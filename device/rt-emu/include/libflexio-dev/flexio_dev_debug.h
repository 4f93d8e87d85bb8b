/* SPDX-License-Identifier: Apache-2.0 */
/* The vendor's header of this name is not public. Programs that include it use what flexio_dev.h has. */
#ifndef FLEXIO_DEV_DEBUG_H
#define FLEXIO_DEV_DEBUG_H

#include "flexio_dev.h"

#endif
