/* Opens a card with an image and says what comes of it.
 *
 * Usage: open IMAGE.elf [FOLDER], the folder that of the card's libraries; without it they are those of the installed DOCA. */
#include <stdio.h>

#include "flexcast.h"

int main(int argc, char **argv)
{
    flexcast_endpoint_options options;
    flexcast_endpoint *endpoint = NULL;
    flexcast_status status = flexcast_endpoint_options_default(&options, sizeof options);

    if (argc < 2 || status != FLEXCAST_OK)
        return 2;
    options.firmware_path = argv[1];
    options.libraries = argc > 2 ? argv[2] : NULL;
    status = flexcast_endpoint_open(&options, &endpoint);
    if (status != FLEXCAST_OK) {
        printf("%d: %s: %s\n", (int)status, flexcast_strerror((int)status), flexcast_last_error());
        return 1;
    }
    printf("opened\n");
    return flexcast_endpoint_close(endpoint) != FLEXCAST_OK;
}
