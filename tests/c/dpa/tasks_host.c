/* SPDX-License-Identifier: Apache-2.0 */
/* Host side of the tasks: 64 of them, in batches of four, on five workers. */
#include "host.h"
#include "tasks.h"

extern struct flexio_app *tasks;
extern flexio_func_t tasks_init, tasks_part, tasks_done, tasks_sum;

int main(void)
{
	struct flexio_cmdq_attr attr = { .workers = 5, .batch_size = 4, .state = FLEXIO_CMDQ_STATE_PENDING };
	uint32_t numbers[PARTS * PART];
	struct flexio_cmdq *queue;
	struct tasks job = { 0 };
	uint64_t answer, expected = 0;
	struct host host = start(tasks);

	for (uint32_t i = 0; i < PARTS * PART; i++)
		expected += numbers[i] = i * 2654435761U;
	job.numbers = device_copy(&host, numbers, sizeof numbers);
	OK(flexio_process_call(host.process, &tasks_init, &answer, device_copy(&host, &job, sizeof job)));
	OK(flexio_cmdq_create(host.process, &attr, &queue));
	for (uint64_t part = 0; part < PARTS; part++)
		OK(flexio_cmdq_task_add(queue, &tasks_part, part));
	OK(flexio_process_call(host.process, &tasks_done, &answer));
	EXPECT(answer == 0);
	OK(flexio_cmdq_state_running(queue));
	for (int i = 0; i < 10000 && !flexio_cmdq_is_empty(queue); i++)
		usleep(100);
	OK(flexio_process_call(host.process, &tasks_done, &answer));
	EXPECT(answer == PARTS);
	OK(flexio_process_call(host.process, &tasks_sum, &answer));
	EXPECT(answer == expected);
	OK(flexio_cmdq_destroy(queue));
	stop(&host);
	puts("the tasks end well");
	return EXIT_SUCCESS;
}
